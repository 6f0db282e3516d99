// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Captures and contexts as the program opens and ends them, memory that stays with the driver.

#include "caught/residual.hpp"
#include "caught/state.hpp"
#include "driver/context.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <tuple>

namespace gpu_sleep::agent::caught {
namespace {

/// The context and the thread count for per-thread streams only: all others have handles of their own.
using CaptureKey = std::tuple<CUstream, CUcontext, std::uint64_t>;

struct Capture {
    std::uint64_t number = 0; ///< never used twice
    CUcontext context = nullptr;
};

struct Books {
    std::mutex mutex; ///< guards all below
    std::map<CaptureKey, Capture> captures;
    std::uint64_t last_number = 0;
    std::atomic<unsigned> open_captures{0};
    std::map<CUcontext, int> own_contexts;  ///< and their devices
    std::map<CUdevice, unsigned> primaries; ///< how often the program holds each
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

/// Takes captures out of the books. Returns them.
std::map<CaptureKey, Capture>
take_captures(const std::function<bool(const CaptureKey& key, const Capture& capture)>& wanted) {
    auto& books = Books::instance();
    const std::lock_guard lock(books.mutex);
    std::map<CaptureKey, Capture> taken;
    for (auto next = books.captures.begin(); next != books.captures.end();) {
        const auto here = next++;
        if (wanted(here->first, here->second)) taken.insert(books.captures.extract(here));
    }
    books.open_captures = static_cast<unsigned>(books.captures.size());
    return taken;
}

void put_captures_back(std::map<CaptureKey, Capture>& taken) {
    auto& books = Books::instance();
    const std::lock_guard lock(books.mutex);
    books.captures.merge(taken);
    books.open_captures = static_cast<unsigned>(books.captures.size());
}

/// Its address tells threads apart. A thread's default streams end with it, and so do their captures.
struct ThreadMark {
    ~ThreadMark() {
        noted([&] {
            const auto is_mine = [&](const CaptureKey& key, const Capture&) {
                return std::get<2>(key) == number();
            };
            if (!take_captures(is_mine).empty()) free_waiting();
        });
    }
    [[nodiscard]] std::uint64_t number() const noexcept { return reinterpret_cast<std::uint64_t>(this); }
};

std::uint64_t this_thread() noexcept {
    static thread_local ThreadMark s_mark;
    return s_mark.number();
}

CaptureKey capture_key(CUstream stream, bool per_thread, CUcontext context) noexcept {
    const bool is_threads_own = stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread);
    return is_threads_own ? CaptureKey(CU_STREAM_PER_THREAD, context, this_thread())
                          : CaptureKey(stream, nullptr, 0);
}

/// The stream's context; null before the agent runs.
CUcontext known_context_of(CUstream stream) noexcept {
    const auto with = memory();
    return with ? context_of(*with, stream) : nullptr;
}

/// Which primary context a device has: a later one may get the same handle.
struct Primary {
    CUcontext context = nullptr; ///< null: none is active
    unsigned long long id = 0;
    friend bool operator==(const Primary&, const Primary&) = default;
};

Primary primary_of(const driver::Api& api, CUdevice device) {
    unsigned flags = 0;
    int is_active = 0;
    if (api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) != CUDA_SUCCESS || !is_active) return {};
    const auto held = driver::PrimaryContext::retain(api, device);
    if (!held) return {};
    Primary primary{held->get(), 0};
    if (api.cuCtxGetId) api.cuCtxGetId(primary.context, &primary.id);
    return primary;
}

/// Everything that is known of a context, out of the books while it may go.
class Departure {
public:
    Departure(const Agent::Memory& memory, CUcontext context, bool is_primary)
        : memory_(memory), context_(context) {
        // Memory of pools outlives contexts, but for the device's primary one, which takes everything with
        // it.
        const auto dies = [=](const Known& a) {
            return !a.is_virtual && a.context == context && (is_primary || !a.pool);
        };
        captures_ = take_captures([=](const CaptureKey&, const Capture& c) { return c.context == context; });
        pools_ = take_pools_of(memory, context);
        waiting_ = take_waiting_of(memory, dies);
        for (const auto& known : Allocations::instance().all(dies))
            if (auto allocation = Allocations::instance().take(known.address))
                allocations_.push_back(*allocation);
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        own_ = books.own_contexts.extract(context);
    }

    /// The context is gone, and with it its memory.
    void gone() {
        for (const auto& allocation : allocations_) {
            if (allocation.pool) freed_from_pool(allocation);
            give_range(memory_, allocation.address);
        }
        pools_.gone();
        waiting_.gone();
        Allocations::instance().change([&](Known& a) {
            if (a.pool && a.context == context_) a.context = nullptr;
        });
    }

    void stays() {
        for (const auto& allocation : allocations_) Allocations::instance().put_back(allocation);
        pools_.stays();
        waiting_.stays();
        put_captures_back(captures_);
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        books.own_contexts.insert(std::move(own_));
    }

private:
    Agent::Memory memory_;
    CUcontext context_;
    std::map<CaptureKey, Capture> captures_;
    std::vector<Known> allocations_;
    std::map<CUcontext, int>::node_type own_;
    Taken pools_;
    Taken waiting_;
};

/// Runs `end`, which may end the context, with the context out of the books.
CUresult end_with(const Agent::Memory& memory, CUcontext context, bool is_primary,
                  const std::function<CUresult()>& end, const std::function<bool()>& is_gone) noexcept {
    std::optional<Departure> departure;
    noted([&] { departure.emplace(memory, context, is_primary); });
    const auto status = end();
    noted([&] {
        if (!departure) return;
        if (status == CUDA_SUCCESS && is_gone())
            departure->gone();
        else
            departure->stays();
    });
    return status;
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

CUresult end_own_context(CUcontext context, const std::function<CUresult()>& end,
                         const std::function<bool(const driver::Api&)>& is_gone) noexcept {
    const auto with = memory();
    if (!with || !context) return end();
    const auto status = [&] {
        const std::lock_guard lock(contexts_mutex());
        return end_with(*with, context, false, end, [&] { return is_gone(with->api); });
    }();
    free_waiting();
    return status;
}

} // namespace

void start() noexcept {
    noted([] {
        auto started = Agent::instance().start();
        if (!started) log::debug("the agent does not run: {}", started.error().message);
    });
}

std::shared_mutex& capture_order() noexcept {
    static auto* const order = new std::shared_mutex;
    return *order;
}

std::uint64_t capture_begins(CUstream stream, bool per_thread) noexcept {
    std::uint64_t number = 0;
    noted([&] {
        const std::unique_lock order(capture_order());
        auto* const context = known_context_of(stream);
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        auto [place, is_new] = books.captures.try_emplace(capture_key(stream, per_thread, context));
        // One that is there already, and goes on, must not be taken for this one.
        place->second = {++books.last_number, context};
        if (is_new) number = books.last_number;
        books.open_captures = static_cast<unsigned>(books.captures.size());
    });
    return number;
}

void capture_failed(CUstream stream, bool per_thread, std::uint64_t number) noexcept {
    noted([&] {
        if (number == 0) return;
        const auto key = capture_key(stream, per_thread, known_context_of(stream));
        take_captures([&](const CaptureKey& k, const Capture& c) { return k == key && c.number == number; });
        free_waiting();
    });
}

std::uint64_t capture_ends(CUstream stream, bool per_thread) noexcept {
    std::uint64_t number = 0;
    noted([&] {
        const auto key = capture_key(stream, per_thread, known_context_of(stream));
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        const auto found = books.captures.find(key);
        if (found != books.captures.end()) number = found->second.number;
    });
    return number;
}

void capture_ended(CUstream stream, bool per_thread, std::uint64_t number, CUresult status) noexcept {
    noted([&] {
        // A broken capture is over too, but not one that was to be ended in the wrong way.
        if (status == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) return;
        if (const auto with = memory(); with && status != CUDA_SUCCESS) {
            auto state = CU_STREAM_CAPTURE_STATUS_NONE;
            auto* const handle = !stream && per_thread ? CU_STREAM_PER_THREAD : stream;
            if (with->api.cuStreamIsCapturing(handle, &state) == CUDA_SUCCESS &&
                state != CU_STREAM_CAPTURE_STATUS_NONE)
                return;
        }
        capture_failed(stream, per_thread, number);
    });
}

CUresult end_stream(CUstream stream, const std::function<CUresult()>& destroy) noexcept {
    std::map<CaptureKey, Capture> captures;
    noted([&] {
        captures =
            take_captures([=](const CaptureKey& key, const Capture&) { return std::get<0>(key) == stream; });
        forget_order_of(stream); // for good: if the stream stays, its blocks wait for their events
    });
    const auto status = destroy();
    noted([&] {
        if (captures.empty()) return;
        if (status == CUDA_SUCCESS)
            free_waiting();
        else
            put_captures_back(captures);
    });
    return status;
}

unsigned captures_open() noexcept {
    return Books::instance().open_captures.load(std::memory_order_seq_cst);
}

void context_created(CUcontext context) noexcept {
    noted([&] {
        const auto with = memory();
        const auto device = with ? current_device(*with) : std::nullopt; // it is current to its maker
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        books.own_contexts.insert_or_assign(context, device.value_or(0));
    });
}

CUresult end_context(CUcontext context, const std::function<CUresult()>& destroy) noexcept {
    return end_own_context(context, destroy, [](const driver::Api&) { return true; });
}

CUresult detach_context(CUcontext context, const std::function<CUresult()>& detach) noexcept {
    // It takes a context that is current, and leaves it so if others are attached to it.
    return end_own_context(context, detach, [context](const driver::Api& api) {
        CUcontext current = nullptr;
        return api.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context;
    });
}

void primary_context_retained(CUdevice device) noexcept {
    noted([&] {
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        ++books.primaries[device];
    });
}

CUresult release_primary_context(CUdevice device, const std::function<CUresult()>& release) noexcept {
    bool is_last = false;
    noted([&] {
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        auto& held = books.primaries[device];
        if (held > 0) --held;
        is_last = held == 0;
    });
    const auto with = memory();
    const auto status = [&] {
        if (!with || !is_last) return release();
        const std::lock_guard lock(contexts_mutex());
        const auto primary = primary_of(with->api, device);
        if (!primary.context) return release();
        return end_with(*with, primary.context, true, release,
                        [&] { return primary_of(with->api, device) != primary; });
    }();
    if (status != CUDA_SUCCESS) primary_context_retained(device);
    if (is_last) free_waiting();
    return status;
}

CUresult reset_primary_context(CUdevice device, const std::function<CUresult()>& reset) noexcept {
    const auto with = memory();
    if (!with) return reset();
    const auto status = [&] {
        const std::lock_guard lock(contexts_mutex());
        const auto primary = primary_of(with->api, device);
        if (!primary.context) return reset();
        return end_with(*with, primary.context, true, reset, [] { return true; });
    }();
    noted([&] {
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        if (status == CUDA_SUCCESS) books.primaries.erase(device);
    });
    free_waiting();
    return status;
}

std::shared_mutex& contexts_mutex() noexcept {
    static auto* const mutex = new std::shared_mutex;
    return *mutex;
}

std::vector<CUcontext> own_contexts_of(int device) {
    auto& books = Books::instance();
    const std::lock_guard lock(books.mutex);
    std::vector<CUcontext> contexts;
    for (const auto& [context, its_device] : books.own_contexts)
        if (its_device == device) contexts.push_back(context);
    return contexts;
}

std::vector<CUcontext> own_contexts() noexcept {
    std::vector<CUcontext> contexts;
    noted([&] {
        auto& books = Books::instance();
        const std::lock_guard lock(books.mutex);
        for (const auto& [context, device] : books.own_contexts) contexts.push_back(context);
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
        if (with->api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) != CUDA_SUCCESS || !is_active)
            continue;
        if (with->api.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) ==
                CUDA_SUCCESS &&
            bytes != 0)
            rows.push_back({"graph", device, bytes, 1, "memory of graph nodes is the driver's"});
    }
}

} // namespace gpu_sleep::agent::caught
