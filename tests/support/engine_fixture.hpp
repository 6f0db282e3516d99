// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The heap and the engine over the simulated driver, in the test's own process: memory with contents that are
// never zero, and the questions that tests ask of it afterwards.

#pragma once

#include "memory/heap.hpp"
#include "sleep/transactions.hpp"
#include "support/result_printing.hpp"
#include "support/simulated_driver/control.h"
#include "support/weights.hpp"

#include <malloc.h>

namespace gpu_sleep::test {

/// Tells the words that only say that a call begins or has ended (Progress::in_call) from those of a step.
class CallWords {
public:
    [[nodiscard]] bool are(const model::Progress& progress) {
        return std::exchange(in_call_, progress.in_call) || progress.in_call;
    }

private:
    bool in_call_ = false;
};

/// An allocation and what it should hold.
struct Allocation {
    driver::DeviceAddress address = 0;
    std::vector<std::uint8_t> contents;
};

/// Leaves a device no memory but these bytes, for as long as it lives.
class Full : NotCopied {
public:
    explicit Full(Bytes left, int device = 0) {
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
        REQUIRE(cuMemCreate(&handle_, sim_free_bytes(device) - left, &properties, 0) == CUDA_SUCCESS);
    }
    ~Full() { CHECK(cuMemRelease(handle_) == CUDA_SUCCESS); }

private:
    CUmemGenericAllocationHandle handle_ = 0;
};

/// Two devices; `most` bytes are retained past a wake.
[[nodiscard]] inline sleep::Transactions::Options retaining(Bytes most = std::numeric_limits<Bytes>::max()) {
    sleep::Transactions::Options options{2, 0};
    options.retained = most;
    return options;
}

[[nodiscard]] inline model::SleepRequest level(int number, std::vector<std::string> tags = {}) {
    model::SleepRequest request;
    request.level = static_cast<model::Level>(number);
    request.tags = std::move(tags);
    return request;
}

/// Initialises the simulated driver with a primary context on each device in use.
class EngineFixture : NotCopied {
public:
    explicit EngineFixture(
        sleep::Transactions::Options options = {2, 0},
        sleep::Transactions::ContextOf own_context_of = [](int) { return nullptr; })
        : api_(load()), heap_(api_, ledger_), engine_(api_, ledger_, options, std::move(own_context_of)) {
        // Contents that a test frees are kept for the next: fresh pages would take half of its time.
        ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
        ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
        sim_clear();
        for (int device = 0; device < 2; ++device) {
            auto context = driver::PrimaryContext::retain(api_, device);
            REQUIRE(context);
            contexts_.push_back(*std::move(context));
        }
    }
    ~EngineFixture() {
        CHECK(sim_fault_counts().illegal_accesses == 0);
        sim_clear();
        for (const auto& allocation : allocations_) static_cast<void>(free(allocation.address));
        static_cast<void>(engine_.contents().reap());
    }

    /// Allocates and fills with random bytes, none of them zero.
    std::size_t add(int device, std::string_view tag, Bytes bytes) {
        auto address = heap_.allocate(device, ledger_.tag_id(tag), bytes);
        REQUIRE(address);
        Allocation allocation{*address, std::vector<std::uint8_t>(bytes)};
        fill_without_zeros(allocation.contents, ++seed_);
        write(device, allocation);
        allocations_.push_back(std::move(allocation));
        return allocations_.size() - 1;
    }

    /// Fills all allocations with their contents again.
    void refill() {
        for (const auto& allocation : allocations_)
            write(ledger_.find(allocation.address)->device, allocation);
    }

    /// Fills allocation `index` with one byte.
    void make_even(std::size_t index, std::uint8_t value = 7) {
        fill(index, {0, allocations_[index].contents.size()}, value);
    }
    /// Fills a part of allocation `index`, which is awake, with one byte.
    void fill(std::size_t index, Span span, std::uint8_t value) {
        auto& allocation = allocations_[index];
        std::fill_n(allocation.contents.begin() + static_cast<std::ptrdiff_t>(span.offset), span.bytes,
                    value);
        write(ledger_.find(allocation.address)->device, allocation);
    }
    /// Changes one byte of it.
    void change(std::size_t index, Bytes offset) {
        fill(index, {offset, 1}, static_cast<std::uint8_t>(allocations_[index].contents[offset] + 1));
    }

    [[nodiscard]] Result<void> free(driver::DeviceAddress address) {
        auto freed = heap_.free(address);
        if (!freed) return std::move(freed).error();
        engine_.contents().forget(freed->kept);
        return {};
    }

    /// Frees allocation `index` and forgets it.
    void remove(std::size_t index) {
        REQUIRE(free(allocations_[index].address));
        allocations_.erase(allocations_.begin() + static_cast<std::ptrdiff_t>(index));
    }

    /// Waits for all that is queued, as an operation has not whose waits all failed.
    void await_devices() {
        for (const auto& context : contexts_) {
            const driver::CurrentContext current(api_, context.get());
            REQUIRE(api_.cuCtxSynchronize() == CUDA_SUCCESS);
        }
    }

    /// Gives back what has died of contents in host memory. Returns how much that was.
    Bytes shrink() {
        Bytes sum = 0;
        while (const auto waste = engine_.contents().find_waste()) {
            const auto bytes = waste->give_back();
            contents::Contents::note_shrunk(*waste, bytes);
            sum += bytes;
        }
        return sum;
    }

    /// Pins up to `pieces` of what sleeps have left to be pinned.
    void pin(int pieces) {
        for (int i = 0; i < pieces; ++i)
            if (auto* const batch = engine_.contents().find_unpinned()) static_cast<void>(batch->pin_some());
    }

    [[nodiscard]] Bytes host_bytes() { return engine_.contents().held(model::Store::host); }
    [[nodiscard]] Bytes retained_bytes() { return engine_.contents().retained(); }
    [[nodiscard]] Bytes file_bytes() { return engine_.contents().held(model::Store::file); }

    /// Flips a bit of what is kept in host memory of allocation `index`, at `offset` in it.
    void flip_kept_bit(std::size_t index, Bytes offset, unsigned bit) {
        const auto& range = engine_.contents().at(ledger_.find(allocations_[index].address)->kept.range);
        contents::for_each_block(range, [&](const contents::Block& block, Span span, std::size_t) {
            if (offset < span.offset || offset >= span.end()) return;
            REQUIRE(block.place.batch->is_cached());
            auto& arena = *block.place.batch->arena();
            REQUIRE(arena.unprotect());
            sim_flip_bit(reinterpret_cast<std::uint64_t>(arena.data()),
                         block.place.at + (offset - span.offset), bit);
        });
    }

    [[nodiscard]] Result<void> sleep(const model::SleepRequest& request, model::Report* report = nullptr) {
        model::Report own;
        auto done = engine_.sleep(request, control_, report ? *report : own);
        static_cast<void>(engine_.contents().reap());
        return done;
    }
    /// The same, which must not fail: what it says.
    [[nodiscard]] model::Report slept(const model::SleepRequest& request) {
        model::Report report;
        REQUIRE(sleep(request, &report));
        return report;
    }
    [[nodiscard]] Result<void> wake(const model::WakeRequest& request = {}, model::Report* report = nullptr) {
        model::Report own;
        auto done = engine_.wake(request, control_, report ? *report : own);
        static_cast<void>(engine_.contents().reap());
        if (!done) return std::move(done).error();
        if (done->left) return *std::move(done->left);
        return {};
    }

    [[nodiscard]] model::Report woken(const model::WakeRequest& request = {}) {
        model::Report report;
        REQUIRE(wake(request, &report));
        return report;
    }

    /// What allocation `index` holds now; it must be awake. Stays until the next call.
    [[nodiscard]] const std::vector<std::uint8_t>& read(std::size_t index) {
        const auto& allocation = allocations_[index];
        const auto device = ledger_.find(allocation.address)->device;
        const driver::CurrentContext current(api_, contexts_[static_cast<std::size_t>(device)].get());
        read_.resize(allocation.contents.size());
        REQUIRE(api_.cuMemcpyDtoHAsync(read_.data(), allocation.address, read_.size(), nullptr) ==
                CUDA_SUCCESS);
        REQUIRE(api_.cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
        return read_;
    }
    [[nodiscard]] bool is_intact(std::size_t index) { return read(index) == allocations_[index].contents; }
    [[nodiscard]] bool all_intact() {
        for (std::size_t i = 0; i < allocations_.size(); ++i)
            if (!is_intact(i)) return false;
        return true;
    }

    /// Wakes it, and every byte is there, and no work touched memory that was not.
    void wake_whole() {
        REQUIRE(wake());
        CHECK(all_intact());
        CHECK(sim_fault_counts().illegal_accesses == 0);
    }

    /// Falls asleep, which must not fail, and wakes whole.
    model::Report cycle(const model::SleepRequest& request = level(1)) {
        auto report = slept(request);
        wake_whole();
        return report;
    }

    [[nodiscard]] model::State state() const { return ledger_.state(); }
    [[nodiscard]] ledger::Ledger& ledger() { return ledger_; }
    [[nodiscard]] memory::Heap& heap() { return heap_; }
    [[nodiscard]] sleep::Transactions& engine() { return engine_; }
    [[nodiscard]] const driver::Api& api() const { return api_; }
    [[nodiscard]] std::vector<Allocation>& allocations() { return allocations_; }
    [[nodiscard]] sleep::Control& control() { return control_; }

private:
    static driver::Api load() {
        auto api = driver::Api::load();
        REQUIRE(api);
        REQUIRE(api->cuInit(0) == CUDA_SUCCESS);
        return *api;
    }
    void write(int device, const Allocation& allocation) {
        const driver::CurrentContext current(api_, contexts_[static_cast<std::size_t>(device)].get());
        // Not cuMemcpyHtoDAsync, for which the simulated driver copies pageable memory twice.
        REQUIRE(::cuMemcpyHtoD(allocation.address, allocation.contents.data(), allocation.contents.size()) ==
                CUDA_SUCCESS);
    }

    driver::Api api_;
    ledger::Ledger ledger_;
    memory::Heap heap_;
    sleep::Transactions engine_;
    sleep::Control control_;
    std::vector<driver::PrimaryContext> contexts_;
    std::vector<Allocation> allocations_;
    std::vector<std::uint8_t> read_;
    std::uint64_t seed_ = 0; ///< of the last allocation
};

/// The same with contents in host memory as the GPU holds them.
[[nodiscard]] inline model::SleepRequest raw(model::SleepRequest request = level(1)) {
    request.raw = true;
    return request;
}

/// To files of a directory in `scratch`; `is_named`: also what sleeps elsewhere.
[[nodiscard]] inline model::SleepRequest in_files(const Scratch& scratch, bool is_named = false) {
    auto request = level(1);
    request.store = model::Store::file;
    request.store_is_named = is_named;
    request.directory = scratch.file("sleep");
    return request;
}

template <class Request>
[[nodiscard]] Request dry(Request request) {
    request.dry_run = true;
    return request;
}

[[nodiscard]] inline model::WakeRequest tags(std::vector<std::string> names) {
    model::WakeRequest request;
    request.tags = std::move(names);
    return request;
}

} // namespace gpu_sleep::test
