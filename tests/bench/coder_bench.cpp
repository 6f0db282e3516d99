// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the kernels that code blocks do in a second, how small they make what kinds of contents, and how fast
// weights leave a GPU and come back with them, beside plain copies in the same run: by way of device memory,
// or straight to and from host memory. Everything that came back is compared by fingerprint.

#include "bench/figures.hpp"
#include "driver/block_coder.hpp"
#include "driver/context.hpp"
#include "driver/device_session.hpp"
#include "support/blocks.hpp"
#include "support/not_copied.hpp"

#include <CLI/CLI.hpp>
#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace gpu_sleep;
using namespace gpu_sleep::driver;

namespace {

constexpr Bytes k_block = codec::k_largest_block;
constexpr std::size_t k_slots = 3;

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "coder_bench: %s\n", what.c_str());
    std::exit(1);
}

void check(CUresult status, const char* what) {
    if (status != CUDA_SUCCESS) fail(std::string(what) + " failed with " + std::to_string(status));
}

void check(const Result<void>& result) {
    if (!result) fail(result.error().message);
}

template <class T>
T take(Result<T> result) {
    if (!result) fail(result.error().message);
    return *std::move(result);
}

struct Options {
    double scale = 1;
    unsigned repeats = 5;
    std::vector<std::string> cases{"kinds", "kernels", "ways"};
    std::string json;

    [[nodiscard]] bool wants(const std::string& name) const {
        return std::find(cases.begin(), cases.end(), name) != cases.end();
    }
};

double seconds_of(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class DeviceMemory : test::NotCopied {
public:
    explicit DeviceMemory(Bytes bytes) { check(cuMemAlloc(&address_, bytes), "cuMemAlloc"); }
    ~DeviceMemory() { cuMemFree(address_); }
    [[nodiscard]] CUdeviceptr address() const { return address_; }

private:
    CUdeviceptr address_ = 0;
};

/// Populated by threads, then pinned, as the product does.
class PinnedMemory : test::NotCopied {
public:
    PinnedMemory(const Api& api, Bytes bytes) : api_(api), bytes_(bytes) {
        void* const memory =
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) fail("no host memory");
        ::madvise(memory, bytes, MADV_HUGEPAGE);
        data_ = static_cast<std::byte*>(memory);
        std::vector<std::jthread> threads;
        const auto part = (bytes / 8 + k_block - 1) / k_block * k_block;
        for (Bytes at = 0; at < bytes; at += part)
            threads.emplace_back([=, this] {
                for (Bytes page = at; page < std::min(bytes_, at + part); page += 4096)
                    data_[page] = std::byte{1};
            });
        threads.clear();
        check(pin_host_memory(api, {data_, bytes_}));
    }
    ~PinnedMemory() {
        static_cast<void>(unpin_host_memory(api_, {data_, bytes_}));
        ::munmap(data_, bytes_);
    }
    [[nodiscard]] std::byte* data() const { return data_; }

private:
    const Api& api_;
    Bytes bytes_;
    std::byte* data_ = nullptr;
};

/// Blocks of one content on the device, and a second place for what comes back.
class Subject : test::NotCopied {
public:
    Subject(const Api& api, DeviceSession& session, const BlockCoder& coder, std::size_t blocks,
            const test::ByteVector& sample)
        : session_(session), coder_(coder), blocks_(blocks), original_(blocks * k_block),
          returned_(blocks * k_block), buffer_(take(MappedBuffer::create(api, blocks * sizeof(BlockTask)))) {
        for (Bytes at = 0; at < blocks * k_block; at += sample.size())
            check(cuMemcpyHtoD(original_.address() + at, sample.data(),
                               std::min<Bytes>(sample.size(), blocks * k_block - at)),
                  "cuMemcpyHtoD");
        std::uninitialized_value_construct_n(tasks().data(), blocks);
        for (auto& stream : streams_)
            check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        measure();
        for (const auto& task : tasks()) {
            worst_ = std::max<Bytes>(worst_, task.plan.coded_bytes);
            coded_ += task.plan.coded_bytes;
            has_raw_ = has_raw_ || task.plan.block_class == codec::BlockClass::raw;
        }
    }
    ~Subject() {
        for (auto* stream : streams_) cuStreamDestroy(stream);
    }

    [[nodiscard]] std::size_t blocks() const { return blocks_; }
    [[nodiscard]] Bytes bytes() const { return blocks_ * k_block; }
    [[nodiscard]] bool has_raw() const { return has_raw_; }
    [[nodiscard]] Bytes coded_bytes() const { return coded_; }
    /// The pitch at which its coded blocks lie.
    [[nodiscard]] Bytes pitch() const { return (worst_ + 4095) / 4096 * 4096; }

    void measure() {
        for (std::size_t i = 0; i < blocks_; ++i)
            tasks()[i] = {.content = original_.address() + i * k_block, .content_bytes = k_block};
        check(coder_.run(BlockWork::measure, tasks(), CodedSide::device, streams_[0]));
        wait();
    }

    /// Raw copies of so many blocks each.
    void copy_out(std::byte* to, std::size_t at_once) {
        in_pieces(at_once, [&](std::size_t first, std::size_t count, std::size_t slot) {
            check(cuMemcpyDtoHAsync(to + first * k_block, original_.address() + first * k_block,
                                    count * k_block, streams_[slot]),
                  "cuMemcpyDtoHAsync");
        });
    }
    void copy_in(const std::byte* from, std::size_t at_once) {
        in_pieces(at_once, [&](std::size_t first, std::size_t count, std::size_t slot) {
            check(cuMemcpyHtoDAsync(returned_.address() + first * k_block, from + first * k_block,
                                    count * k_block, streams_[slot]),
                  "cuMemcpyHtoDAsync");
        });
    }

    /// Encodes into `to`, or into slots of `at_once` blocks there; `to` is device memory, from which `copied`
    /// is called for what is to leave it, or host memory.
    template <class Copied>
    void encode(std::uint64_t to, CodedSide side, bool in_slots, std::size_t at_once, Copied&& copied) {
        in_pieces(at_once, [&](std::size_t first, std::size_t count, std::size_t slot) {
            const auto base = to + (in_slots ? slot * at_once : first) * pitch();
            const auto these = place(first, count, base, original_.address());
            for (auto& task : these) task.plan.coded_bytes = static_cast<std::uint32_t>(pitch());
            check(coder_.run(BlockWork::encode, these, side, streams_[slot]));
            copied(base, first, count, streams_[slot]);
        });
        for (const auto& task : tasks())
            if (task.failed != 0) fail("a block did not fit");
    }
    template <class Copied>
    void decode(std::uint64_t from, CodedSide side, bool in_slots, std::size_t at_once, Copied&& copied) {
        in_pieces(at_once, [&](std::size_t first, std::size_t count, std::size_t slot) {
            const auto base = from + (in_slots ? slot * at_once : first) * pitch();
            copied(base, first, count, streams_[slot]);
            check(coder_.run(BlockWork::decode, place(first, count, base, returned_.address()), side,
                             streams_[slot]));
        });
        for (const auto& task : tasks())
            if (task.failed != 0) fail("a block came back damaged");
    }
    /// Raw by the kernel that takes fingerprints.
    void copy_in_by_kernel(std::uint64_t from) {
        std::vector<FingerprintBlock> parts;
        for (std::size_t i = 0; i < blocks_; ++i)
            parts.push_back({from + i * k_block, k_block, returned_.address() + i * k_block});
        if (!session_.fingerprint(parts)) fail("copying by a kernel failed");
        check(session_.synchronize());
    }

    void forget_returned() {
        check(cuMemsetD8(returned_.address(), 0, bytes()), "cuMemsetD8");
        wait();
    }
    void check_returned() {
        const auto fingerprints = [&](CUdeviceptr address) {
            std::vector<FingerprintBlock> parts;
            for (std::size_t i = 0; i < blocks_; ++i) parts.push_back({address + i * k_block, k_block});
            const auto found = take(session_.fingerprint(parts));
            check(session_.synchronize());
            return std::vector(found.begin(), found.end());
        };
        if (fingerprints(original_.address()) != fingerprints(returned_.address()))
            fail("other bytes came back");
    }

private:
    [[nodiscard]] std::span<BlockTask> tasks() const {
        return {reinterpret_cast<BlockTask*>(buffer_->data()), blocks_};
    }
    std::span<BlockTask> place(std::size_t first, std::size_t count, std::uint64_t coded,
                               CUdeviceptr content) {
        const auto these = tasks().subspan(first, count);
        for (std::size_t i = 0; i < count; ++i) {
            these[i].coded = coded + i * pitch();
            these[i].content = content + (first + i) * k_block;
        }
        return these;
    }
    void in_pieces(std::size_t at_once,
                   const std::function<void(std::size_t, std::size_t, std::size_t)>& each) {
        std::size_t slot = 0;
        for (std::size_t first = 0; first < blocks_; first += at_once, slot = (slot + 1) % k_slots)
            each(first, std::min(at_once, blocks_ - first), slot);
        wait();
    }
    void wait() { check(cuCtxSynchronize(), "cuCtxSynchronize"); }

    DeviceSession& session_;
    const BlockCoder& coder_;
    const std::size_t blocks_;
    DeviceMemory original_, returned_;
    std::unique_ptr<MappedBuffer> buffer_;
    std::array<CUstream, k_slots> streams_{};
    Bytes worst_ = 0, coded_ = 0;
    bool has_raw_ = false;
};

constexpr auto k_no_copy = [](std::uint64_t, std::size_t, std::size_t, CUstream) {};

/// The kernels alone, in device memory.
void measure_kernels(Subject& subject, const std::string& name, const Options& options,
                     bench::Figures& figures) {
    const auto add = [&](const std::string& what, const std::function<void()>& work) {
        bench::Figure figure{
            .name = name + ": " + what, .unit = "GB/s", .samples = {}, .target = {}, .limit = {}};
        work();
        for (unsigned i = 0; i < options.repeats; ++i)
            figure.samples.push_back(static_cast<double>(subject.bytes()) / 1e9 / seconds_of(work));
        figures.add(figure);
    };
    add("measure", [&] { subject.measure(); });
    for (const std::size_t at_once : {64, 256, 1024}) {
        if (at_once > 64 && at_once > subject.blocks()) break;
        const DeviceMemory slots(k_slots * at_once * subject.pitch());
        const auto by = ", launches of " + std::to_string(at_once) + " MiB";
        add("encode" + by,
            [&] { subject.encode(slots.address(), CodedSide::device, true, at_once, k_no_copy); });
        const DeviceMemory all(subject.blocks() * subject.pitch());
        subject.encode(all.address(), CodedSide::device, false, at_once, k_no_copy);
        add("decode" + by,
            [&] { subject.decode(all.address(), CodedSide::device, false, at_once, k_no_copy); });
        subject.check_returned();
    }
}

/// Weights on their way out and in.
void measure_ways(const Api& api, Subject& subject, const Options& options, bench::Figures& figures) {
    const PinnedMemory host(api, subject.bytes());
    const auto at = reinterpret_cast<std::uint64_t>(host.data());
    std::optional<double> raw;
    const auto add = [&](const std::string& what, bool just_released, const std::function<void()>& work,
                         const std::function<void()>& after) {
        bench::Figure figure{.name = what, .unit = "s", .samples = {}, .target = {}, .limit = raw};
        for (unsigned i = 0; i < options.repeats; ++i) {
            if (just_released) {
                const DeviceMemory other(static_cast<Bytes>(options.scale * static_cast<double>(40 * k_gib)));
                check(cuMemsetD8(other.address(), 1,
                                 static_cast<Bytes>(options.scale * static_cast<double>(40 * k_gib))),
                      "cuMemsetD8");
                check(cuCtxSynchronize(), "cuCtxSynchronize");
            }
            figure.samples.push_back(seconds_of(work));
            after();
        }
        figures.add(figure);
        return figure.value();
    };
    const auto nothing = [] {};
    const auto returned = [&] {
        subject.check_returned();
        subject.forget_returned();
    };
    constexpr std::size_t k_at_once = 64;
    const auto copy_out = [&] { subject.copy_out(host.data(), k_at_once); };
    const auto copy_in = [&] { subject.copy_in(host.data(), k_at_once); };
    subject.forget_returned();
    raw = add("out, raw copies", false, copy_out, nothing);
    const auto raw_out = raw;
    raw.reset();
    const std::optional<double> raw_in = add("in, raw copies", false, copy_in, returned);
    const std::optional<double> raw_in_released =
        add("in just after a release, raw copies", true, copy_in, returned);
    raw = raw_in_released;
    const auto by_kernel = [&] { subject.copy_in_by_kernel(at); };
    add("in just after a release, raw by kernel", true, by_kernel, returned);
    raw = raw_in;
    add("in, raw by kernel", false, by_kernel, returned);

    for (const std::size_t at_once : {64, 128, 256}) {
        const DeviceMemory slots(k_slots * at_once * subject.pitch());
        const auto by = ", copied by " + std::to_string(at_once) + " MiB";
        const auto out = [&] {
            subject.encode(slots.address(), CodedSide::device, true, at_once,
                           [&](std::uint64_t slot, std::size_t first, std::size_t count, CUstream stream) {
                               check(cuMemcpyDtoHAsync(host.data() + first * subject.pitch(), slot,
                                                       count * subject.pitch(), stream),
                                     "cuMemcpyDtoHAsync");
                           });
        };
        const auto in = [&] {
            subject.decode(slots.address(), CodedSide::device, true, at_once,
                           [&](std::uint64_t slot, std::size_t first, std::size_t count, CUstream stream) {
                               check(cuMemcpyHtoDAsync(slot, host.data() + first * subject.pitch(),
                                                       count * subject.pitch(), stream),
                                     "cuMemcpyHtoDAsync");
                           });
        };
        raw = raw_out;
        add("out" + by, false, out, nothing);
        raw = raw_in;
        add("in" + by, false, in, returned);
        if (at_once != 64) continue;
        raw = raw_in_released;
        add("in just after a release" + by, true, in, returned);
    }
    for (const std::size_t at_once : {std::size_t{64}, std::size_t{512}, subject.blocks()}) {
        const auto by = at_once == subject.blocks() ? std::string(", straight by one launch")
                                                    : ", straight by " + std::to_string(at_once) + " MiB";
        raw = raw_out;
        add(
            "out" + by, false, [&] { subject.encode(at, CodedSide::host, false, at_once, k_no_copy); },
            nothing);
        const auto in = [&] { subject.decode(at, CodedSide::host, false, at_once, k_no_copy); };
        raw = raw_in;
        add("in" + by, false, in, returned);
        raw = raw_in_released;
        add("in just after a release" + by, true, in, returned);
    }
}

int run(const Options& options) {
    const auto api = take(Api::load());
    check(initialise(api));
    const auto session = take(DeviceSession::open(api, take(PrimaryContext::retain(api, 0))));
    const auto current = session->enter();
    std::array<char, 100> name{};
    check(cuDeviceGetName(name.data(), name.size(), 0), "cuDeviceGetName");
    bench::Figures figures("coder_bench", name.data());
    const auto coder = take(BlockCoder::load(api));

    for (const auto& kind : test::block_contents()) {
        if (!options.wants("kinds")) break;
        const auto blocks = std::max<std::size_t>(1, static_cast<std::size_t>(1024 * options.scale));
        Subject subject(api, *session, *coder, blocks, kind.make(std::min<std::size_t>(blocks, 8) * k_block));
        figures.add(
            {.name = kind.name + ": size",
             .unit = "",
             .samples = {static_cast<double>(subject.coded_bytes()) / static_cast<double>(subject.bytes())},
             .target = {},
             .limit = {}});
        if (kind.name == "bf16" || subject.has_raw()) continue;
        measure_kernels(subject, kind.name, options, figures);
    }
    constexpr double k_model_bytes = 16.06e9;
    const auto blocks =
        std::max<std::size_t>(2, static_cast<std::size_t>(k_model_bytes * options.scale / k_block));
    Subject subject(api, *session, *coder, blocks,
                    test::normal_bf16(std::min<std::size_t>(blocks, 128) * k_block / 2));
    if (options.wants("kernels")) measure_kernels(subject, "16.06 GB of bf16", options, figures);
    if (options.wants("ways")) measure_ways(api, subject, options, figures);
    return bench::finish(figures, options.json, false);
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("What coding blocks on the GPU gains");
    app.add_option("--scale", options.scale, "How much of the work, such as 0.01");
    app.add_option("--repeats", options.repeats, "How often each is measured")->check(CLI::PositiveNumber);
    app.add_option("--cases", options.cases,
                   "Of these: kinds of contents; kernels, with bf16; ways of bf16 out and in")
        ->delimiter(',');
    app.add_option("--json", options.json, "A file for all samples");
    CLI11_PARSE(app, argc, argv);
    return run(options);
}
