// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Captures and contexts as the program opens and ends them, memory that stays with the driver.

#include "caught/residual.hpp"
#include "caught/state.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

namespace gpu_sleep::agent::caught {
namespace {

struct Books {
    std::mutex mutex; ///< guards all below
    std::set<std::pair<CUstream, std::uint64_t>> captures; ///< the thread counts for per-thread streams only
    std::atomic<unsigned> open_captures{0};
    std::set<CUcontext> own_contexts;
    struct Resident {
        Bytes bytes;
        const char* kind;
        const char* reason;
        int device;
    };
    std::map<CUdeviceptr, Resident> residents;
    static Books& instance() {
        static auto* const books = new Books;
        return *books;
    }
};

std::uint64_t this_thread() noexcept {
    static thread_local char s_mark;
    return reinterpret_cast<std::uint64_t>(&s_mark);
}

std::pair<CUstream, std::uint64_t> capture_key(CUstream stream, bool per_thread) noexcept {
    const bool is_threads_own = stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread);
    return is_threads_own ? std::pair(CU_STREAM_PER_THREAD, this_thread()) : std::pair(stream, std::uint64_t{0});
}

void add_resident(CUdeviceptr address, std::size_t bytes, const char* kind, const char* reason) noexcept {
    noted([&] {
        const auto with = memory();
        const auto device = with ? current_device(*with) : std::nullopt;
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        books.residents[address] = {bytes, kind, reason, device.value_or(0)};
    });
}

/// Frees the allocations of a context that is gone: their memory died with it, as the driver's own does.
void free_all_of(const std::function<bool(const Known&)>& theirs) noexcept {
    noted([&] {
        const auto with = memory();
        if (!with) return;
        for (const auto& allocation : Allocations::instance().all(theirs))
            if (Allocations::instance().take(allocation.address)) give_range(*with, allocation.address);
    });
}

} // namespace

void start() noexcept {
    noted([] {
        auto started = Agent::instance().start();
        if (!started) log::debug("the agent does not run: {}", started.error().message);
    });
}

void capture_began(CUstream stream, bool per_thread) noexcept {
    noted([&] {
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        books.captures.insert(capture_key(stream, per_thread));
        books.open_captures = static_cast<unsigned>(books.captures.size());
    });
}

void capture_ended(CUstream stream, bool per_thread) noexcept {
    noted([&] {
        auto& books = Books::instance();
        {
            const std::lock_guard lock(books.mutex);
            books.captures.erase(capture_key(stream, per_thread));
            books.open_captures = static_cast<unsigned>(books.captures.size());
        }
        free_waiting();
    });
}

unsigned captures_open() noexcept {
    return Books::instance().open_captures.load(std::memory_order_seq_cst);
}

void context_created(CUcontext context) noexcept {
    noted([&] {
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        books.own_contexts.insert(context);
    });
}

void context_destroyed(CUcontext context) noexcept {
    noted([&] {
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        books.own_contexts.erase(context);
    });
    free_all_of([=](const Known& a) { return !a.is_virtual && !a.pool && a.context == context; });
}

void primary_context_gone(CUdevice device) noexcept {
    const auto with = memory();
    if (!with) return;
    unsigned flags = 0;
    int is_active = 0;
    if (with->api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) != CUDA_SUCCESS || is_active) return;
    const auto own = own_contexts();
    free_all_of([&](const Known& a) {
        const bool is_primary = std::find(own.begin(), own.end(), a.context) == own.end();
        return !a.is_virtual && a.device == device && is_primary;
    });
}

std::vector<CUcontext> own_contexts() noexcept {
    std::vector<CUcontext> contexts;
    noted([&] {
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        contexts.assign(books.own_contexts.begin(), books.own_contexts.end());
    });
    return contexts;
}

void managed_allocated(CUdeviceptr address, std::size_t bytes) noexcept {
    add_resident(address, bytes, "managed", "the driver moves it between host and device itself");
}

void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept {
    add_resident(address, bytes, kind, "it belongs to another process");
}

void forget_residual(CUdeviceptr address) noexcept {
    noted([&] {
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        books.residents.erase(address);
    });
}

std::vector<Residual> residual() noexcept {
    std::vector<Residual> rows;
    noted([&] {
        {
            auto& books = Books::instance();
            const std::lock_guard lock(books.mutex);
            for (const auto& [address, resident] : books.residents)
                rows.push_back({resident.kind, resident.device, resident.bytes, 1, resident.reason});
        }
        add_pinned_handles(rows);
        add_graph_memory(rows);
    });
    // One row for each kind, device and reason.
    std::vector<Residual> sums;
    for (const auto& row : rows) {
        const auto same = std::find_if(sums.begin(), sums.end(), [&](const Residual& s) {
            return std::string_view(s.kind) == row.kind && s.device == row.device &&
                   std::string_view(s.reason) == row.reason;
        });
        if (same == sums.end()) {
            sums.push_back(row);
        } else {
            same->bytes += row.bytes;
            same->count += row.count;
        }
    }
    return sums;
}

void add_graph_memory(std::vector<Residual>& rows) {
    const auto with = memory();
    if (!with || !with->api.cuDeviceGetGraphMemAttribute) return;
    int devices = 0;
    if (with->api.cuDeviceGetCount(&devices) != CUDA_SUCCESS) return;
    for (int device = 0; device < devices; ++device) {
        unsigned flags = 0;
        int is_active = 0;
        cuuint64_t bytes = 0;
        if (with->api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) != CUDA_SUCCESS || !is_active) continue;
        if (with->api.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) ==
                CUDA_SUCCESS &&
            bytes != 0)
            rows.push_back({"graph", device, bytes, 1, "memory of graph nodes is the driver's"});
    }
}

} // namespace gpu_sleep::agent::caught
