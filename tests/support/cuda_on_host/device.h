// Runs CUDA C on the host to test its arithmetic and its barriers: the threads of a block are fibers that take turns, from
// one barrier to the next. Blocks run one after the other. Shared memory is poisoned before each block. What the hardware
// would hang on or forbid ends the launch with a fault that says so.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("shared_memory")))
#define __grid_constant__

struct Index {
    int x, y, z;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

struct float4 {
    float x, y, z, w;
};
struct uint4 {
    unsigned x, y, z, w;
};

extern char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));

namespace host {

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Index thread;
    bool done = false;
};

inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline int current, arrived;
inline long generation;
inline long steps;  // that any thread went on by; a turn without one never ends
inline std::string fault;
inline std::function<void()> body;
constexpr size_t STACK = 256 << 10;

inline void yield() {
    swapcontext(&fibers[current].context, &scheduler);
}

// Gives the turn away without waiting for anybody.
inline void pass() {
    ++steps;
    yield();
}

inline void fail(const char* said) {
    throw std::runtime_error(said);
}

// Of the whole block: a thread that never comes is a deadlock, also one that has returned.
inline void barrier() {
    const long mine = generation;
    ++steps;
    if (++arrived == int(fibers.size())) {
        arrived = 0;
        ++generation;
    }
    while (generation == mine) yield();
}

inline void start() {
    try {
        body();
    } catch (const std::exception& error) {
        fault = error.what();
    }
    ++steps;
    fibers[current].done = true;
    yield();
}

inline void run_block() {
    const int threads = blockDim.x * blockDim.y * blockDim.z;
    arrived = 0;
    if (__start_shared_memory) memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
    fibers.clear();
    fibers.resize(threads);
    for (int i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.thread = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        fiber.stack.reset(new char[STACK]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, start, 0);
    }
    for (bool alive = true; alive;) {
        alive = false;
        const long before = steps;
        for (current = 0; current < threads; ++current) {
            if (fibers[current].done) continue;
            alive = true;
            threadIdx = fibers[current].thread;
            swapcontext(&scheduler, &fibers[current].context);
            if (!fault.empty()) return;
        }
        if (alive && steps == before) {
            fault = "deadlock: every thread waits for another";
            return;
        }
    }
}

// Null, or the fault that ended the launch.
inline const char* launch(Index grid, Index block, std::function<void()> kernel) {
    gridDim = grid;
    blockDim = block;
    body = kernel;
    fault.clear();
    for (int z = 0; z < grid.z; ++z)
        for (int y = 0; y < grid.y; ++y)
            for (int x = 0; x < grid.x; ++x) {
                blockIdx = {x, y, z};
                run_block();
                if (!fault.empty()) return fault.c_str();
            }
    return nullptr;
}

}  // namespace host

inline void __syncthreads() { host::barrier(); }
inline void __syncwarp() { host::pass(); }
