// Runs CUDA C on the host to test its arithmetic and its barriers: the threads of a block are fibers that take turns, from
// one barrier to the next. Blocks run one after the other, those of a cluster together. Shared memory is poisoned before each
// block. What the hardware would hang on or forbid ends the launch with a fault that says so.
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

#ifdef __CUDA_RUNTIME_H__  // CUDA's own headers came first, with their types
#undef __launch_bounds__
#define __launch_bounds__(...)
typedef uint3 Index;
#else
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("shared_memory")))
#define __grid_constant__
#define __cluster_dims__(...)

struct Index {
    int x, y, z;
};
struct float4 {
    float x, y, z, w;
};
struct uint4 {
    unsigned x, y, z, w;
};
#endif
inline Index threadIdx, blockIdx, blockDim, gridDim;

extern char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));

namespace host {

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Index thread, block;
    int rank;  // of its block in the cluster
    bool done = false;
};

// A meeting of so many threads, again and again.
struct Meeting {
    int arrived = 0;
    long generation = 0;
};

inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline int current;
inline Meeting all_of_block[8], all_of_cluster;
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

// A thread that never comes is a deadlock, also one that has returned.
inline void meet(Meeting& meeting, int threads) {
    const long mine = meeting.generation;
    ++steps;
    if (++meeting.arrived == threads) {
        meeting.arrived = 0;
        ++meeting.generation;
    }
    while (meeting.generation == mine) yield();
}

inline int threads_of_block() {
    return blockDim.x * blockDim.y * blockDim.z;
}

inline int rank() {
    return fibers[current].rank;
}

inline void barrier() {
    meet(all_of_block[rank()], threads_of_block());
}

// Whether all threads of a block of the cluster have returned.
inline bool has_ended(int block_rank) {
    for (const Fiber& fiber : fibers)
        if (fiber.rank == block_rank && !fiber.done) return false;
    return true;
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

inline void run_cluster(Index first, int blocks) {
    const int threads = threads_of_block();
    all_of_cluster = Meeting();
    for (Meeting& meeting : all_of_block) meeting = Meeting();
    if (__start_shared_memory) memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
    fibers.clear();
    fibers.resize(threads * blocks);
    for (int i = 0; i < threads * blocks; ++i) {
        Fiber& fiber = fibers[i];
        const int within = i % threads;
        fiber.rank = i / threads;
        fiber.block = {first.x + fiber.rank, first.y, first.z};
        fiber.thread = {within % blockDim.x, within / blockDim.x % blockDim.y, within / (blockDim.x * blockDim.y)};
        fiber.stack.reset(new char[STACK]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, start, 0);
    }
    // One block of the cluster runs for as long as it can, then the next: none may count on the others' pace.
    for (long before = -1; before != steps;) {
        before = steps;
        for (int rank = 0; rank < blocks; ++rank)
            for (long turn = -1; turn != steps;) {
                turn = steps;
                for (current = rank * threads; current < (rank + 1) * threads; ++current) {
                    if (fibers[current].done) continue;
                    threadIdx = fibers[current].thread;
                    blockIdx = fibers[current].block;
                    swapcontext(&scheduler, &fibers[current].context);
                    if (!fault.empty()) return;
                }
            }
    }
    for (const Fiber& fiber : fibers)
        if (!fiber.done) fault = "deadlock: every thread waits for another";
}

// Null, or the fault that ended the launch. Each `cluster` neighbours along x run together.
inline const char* launch(Index grid, Index block, std::function<void()> kernel, int cluster = 1) {
    gridDim = grid;
    blockDim = block;
    body = kernel;
    fault.clear();
    if (grid.x % cluster) fault = "the grid is no multiple of the cluster";
    for (int z = 0; z < grid.z; ++z)
        for (int y = 0; y < grid.y; ++y)
            for (int x = 0; x < grid.x; x += cluster) {
                if (!fault.empty()) return fault.c_str();
                run_cluster({x, y, z}, cluster);
            }
    return fault.empty() ? nullptr : fault.c_str();
}

}  // namespace host

inline void __syncthreads() { host::barrier(); }
inline void __syncwarp() { host::pass(); }
