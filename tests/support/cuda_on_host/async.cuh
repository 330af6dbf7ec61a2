// Asynchronous copies on the host, each made as late as its wait allows: what is read too early is poison.
#pragma once
#include <map>

#include "device.h"

using std::min;

struct Copy {
    float* to;
    const float* from;  // null: zeros
    int bytes;
};
inline std::map<int, std::vector<std::vector<Copy>>> copies_of;  // groups by thread; the last one is open

inline std::vector<std::vector<Copy>>& own_copies() {
    auto& groups = copies_of[host::current];
    if (groups.empty()) groups.emplace_back();
    return groups;
}

template <int bytes>
void copy_async(float* to, const float* from, bool inside) {
    if (reinterpret_cast<uintptr_t>(to) % bytes || (inside && reinterpret_cast<uintptr_t>(from) % bytes))
        host::fail("unaligned copy");
    own_copies().back().push_back({to, inside ? from : nullptr, bytes});
}

inline void commit_copies() { own_copies().emplace_back(); }

template <int pending>
void wait_for_copies() {
    auto& groups = own_copies();
    while (int(groups.size()) - 1 > pending) {
        for (const Copy& copy : groups.front())
            if (copy.from)
                memcpy(copy.to, copy.from, copy.bytes);
            else
                memset(copy.to, 0, copy.bytes);
        groups.erase(groups.begin());
    }
}

template <typename T>
T& shared_memory() {
    __shared__ __align__(16) char memory[sizeof(T)];
    return *reinterpret_cast<T*>(memory);
}
