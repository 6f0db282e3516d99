// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How fast contents go to snapshots and come back, against a raw file of the same bytes and against plain
// zstd -1 in the same directory. Rates count contents; reading starts with the file out of the page cache
// where the kernel lets go of it.

#include "bench/figures.hpp"
#include "bench/plain_zstd.hpp"
#include "store/snapshot_reader.hpp"
#include "store/snapshot_writer.hpp"
#include "support/weights.hpp"

#include <CLI/CLI.hpp>
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace {

using namespace gpu_sleep;

struct Options {
    Bytes bytes = k_gib;
    std::string directory = "/tmp";
    unsigned repeats = 3;
    unsigned threads = 0;
    std::string json;
};

constexpr auto k_chunk = static_cast<std::size_t>(codec::k_chunk_bytes);

/// One chunk of weights over and over, at a page.
class Contents final : public store::ChunkSource, public store::ChunkSink {
public:
    explicit Contents(const test::ByteVector& chunk)
        : memory_(static_cast<std::byte*>(std::aligned_alloc(store::k_alignment, k_chunk)), &std::free),
          spaces_(256, test::ByteVector(k_chunk)) {
        std::memcpy(memory_.get(), chunk.data(), k_chunk);
    }
    [[nodiscard]] std::byte* data() const noexcept { return memory_.get(); }

    [[nodiscard]] Result<std::span<const std::byte>> take(const store::ChunkPlace& place) override {
        return std::span<const std::byte>(memory_.get(), place.bytes);
    }
    void release(const store::ChunkPlace&) noexcept override {}
    [[nodiscard]] Result<std::span<std::byte>> space(const store::ChunkPlace& place) override {
        return std::span(spaces_[place.number % spaces_.size()]).first(place.bytes);
    }
    [[nodiscard]] Result<void> deliver(const store::ChunkPlace&, std::span<const std::byte>) override {
        return {};
    }

private:
    std::unique_ptr<std::byte, decltype(&std::free)> memory_;
    std::vector<test::ByteVector> spaces_; ///< more than are ever on their way
};

double rate(Bytes bytes, Clock::time_point start) {
    return static_cast<double>(bytes) / std::chrono::duration<double>(Clock::now() - start).count() / 1e9;
}

/// GB/s down and up.
struct Rates {
    std::vector<double> down;
    std::vector<double> up;
};

/// Plain writes of the same bytes, several at once, with a flush at the end; then as many reads.
Result<void> measure_raw(const Options& options, const store::SnapshotDirectory& directory,
                         const Contents& contents, Rates& rates) {
    constexpr const char* k_name = "raw";
    const UniqueFd fd(
        ::open((directory.path() / k_name).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd) return make_error(ErrorCode::io_failed, "cannot write to {}", options.directory);
    const int flags = ::fcntl(fd.get(), F_GETFL);
    static_cast<void>(::fcntl(fd.get(), F_SETFL, flags | O_DIRECT));
    const auto pass = [&](store::IoRequest::Kind kind) -> Result<double> {
        const auto start = Clock::now();
        auto queue = store::open_io_queue();
        if (!queue) return queue.error();
        std::atomic<Bytes> left = options.bytes;
        std::atomic<bool> failed = false;
        for (Bytes at = 0; at < options.bytes; at += k_chunk)
            (*queue)->submit({kind, fd.get(), contents.data(), k_chunk, at, [&](Result<void> done) {
                                  if (!done) failed = true;
                                  left -= k_chunk;
                              }});
        while (left > 0) ::usleep(100);
        if (failed || ::fsync(fd.get()) != 0)
            return make_error(ErrorCode::io_failed, "cannot use a file in {}", options.directory);
        return rate(options.bytes, start);
    };
    const auto down = pass(store::IoRequest::Kind::write);
    const auto up = down ? pass(store::IoRequest::Kind::read) : down;
    ::unlink((directory.path() / k_name).c_str());
    if (!up) return up.error();
    rates.down.push_back(*down);
    rates.up.push_back(*up);
    return {};
}

/// Plain zstd, if it is there; nothing otherwise.
Result<void> measure_zstd([[maybe_unused]] const Options& options,
                          [[maybe_unused]] const store::SnapshotDirectory& directory,
                          [[maybe_unused]] const test::ByteVector& chunk, [[maybe_unused]] Rates& rates,
                          [[maybe_unused]] Bytes& stored) {
#ifdef GPU_SLEEP_HAVE_ZSTD
    constexpr const char* k_name = "zstd";
    const UniqueFd fd(
        ::open((directory.path() / k_name).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd) return make_error(ErrorCode::io_failed, "cannot write to {}", options.directory);
    ::unlink((directory.path() / k_name).c_str());
    const auto threads =
        options.threads > 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
    bench::PlainZstd zstd(fd.get(), chunk, threads);
    auto start = Clock::now();
    GPU_SLEEP_TRY(zstd.write(options.bytes / k_chunk));
    rates.down.push_back(rate(options.bytes, start));
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    start = Clock::now();
    GPU_SLEEP_TRY(zstd.read());
    rates.up.push_back(rate(options.bytes, start));
    stored = zstd.stored();
#endif
    return {};
}

Result<void> measure(const Options& options, const char* kind, const test::ByteVector& chunk,
                     bench::Figures& figures) {
    const auto directory =
        store::SnapshotDirectory::open(options.directory + "/gpu-sleep-bench-" + std::to_string(::getpid()));
    if (!directory) return directory.error();
    Contents contents(chunk);
    store::SnapshotDescription description{{}, {}, {::getpid(), 1}, ::geteuid(), {}};
    description.extents.push_back({0x7f0000000000, options.bytes, "weights", 0});
    Rates raw;
    Rates zstd;
    Rates own;
    Bytes stored = 0;
    Bytes stored_by_zstd = 0;
    for (unsigned i = 0; i < options.repeats; ++i) {
        GPU_SLEEP_TRY(measure_raw(options, **directory, contents, raw));
        GPU_SLEEP_TRY(measure_zstd(options, **directory, chunk, zstd, stored_by_zstd));
        auto start = Clock::now();
        store::SnapshotWriteOptions writing;
        writing.threads = options.threads;
        const auto snapshot = store::write_snapshot(*directory, description, contents, writing);
        if (!snapshot) return snapshot.error();
        own.down.push_back(rate(options.bytes, start));
        stored = snapshot->header.file_bytes;
        ::posix_fadvise(snapshot->file.fd(), 0, 0, POSIX_FADV_DONTNEED);
        start = Clock::now();
        const auto reader = store::SnapshotReader::open(snapshot->file.path());
        if (!reader) return reader.error();
        store::SnapshotReadOptions reading;
        reading.threads = options.threads;
        GPU_SLEEP_TRY(reader->read(contents, reading));
        own.up.push_back(rate(options.bytes, start));
    }
    ::rmdir((*directory)->path().c_str());
    const auto down = bench::median(raw.down);
    const auto up = bench::median(raw.up);
    const auto part = [&](Bytes bytes) {
        return std::vector{static_cast<double>(bytes) / static_cast<double>(options.bytes)};
    };
    figures.add({fmt::format("{}: raw file, written and flushed", kind), "GB/s", raw.down, {}, {}});
    figures.add({fmt::format("{}: raw file, read", kind), "GB/s", raw.up, {}, {}});
    if (!zstd.down.empty()) {
        figures.add({fmt::format("{}: zstd -1, written and flushed", kind), "GB/s", zstd.down, {}, down});
        figures.add({fmt::format("{}: zstd -1, read", kind), "GB/s", zstd.up, {}, up});
        figures.add(
            {fmt::format("{}: zstd -1, part that is stored", kind), "", part(stored_by_zstd), {}, {}});
    }
    figures.add({fmt::format("{}: snapshot, written and flushed", kind), "GB/s", own.down, {}, down});
    figures.add({fmt::format("{}: snapshot, read and checked", kind), "GB/s", own.up, {}, up});
    figures.add({fmt::format("{}: snapshot, part that is stored", kind), "", part(stored), {}, {}});
    return {};
}

Result<bench::Figures> run(const Options& options) {
    bench::Figures figures(
        "snapshot_bench",
        fmt::format("{} in {}, {}", format_bytes(options.bytes), options.directory,
                    store::has_io_uring() ? "io_uring where files are not cached" : "threads"));
    GPU_SLEEP_TRY(measure(options, "bf16", test::normal_bf16(k_chunk / 2), figures));
    GPU_SLEEP_TRY(measure(options, "e4m3", test::normal_e4m3(k_chunk), figures));
    GPU_SLEEP_TRY(measure(options, "fp32", test::normal_fp32(k_chunk / 4), figures));
    GPU_SLEEP_TRY(measure(options, "random", test::random_bytes(k_chunk), figures));
    return figures;
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    unsigned gib = 1;
    CLI::App app{"Measures snapshots of weights in a directory. No GPU is needed."};
    app.add_option("--gib", gib, "contents")->check(CLI::Range(1, 1000));
    app.add_option("--dir", options.directory, "where to write");
    app.add_option("--threads", options.threads, "that encode and decode; 0 for one a processor");
    app.add_option("--repeats", options.repeats, "measurements of a kind")->check(CLI::Range(1, 1000));
    app.add_option("--json", options.json, "file for the figures");
    CLI11_PARSE(app, argc, argv);
    options.bytes = gib * k_gib;
    const auto figures = run(options);
    if (figures) return bench::finish(*figures, options.json, false);
    std::fprintf(stderr, "snapshot_bench: %s\n", figures.error().message.c_str());
    return EXIT_FAILURE;
}
