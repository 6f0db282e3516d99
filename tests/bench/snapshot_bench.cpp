// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How fast contents go to snapshots and come back, against a raw file of the same bytes in the same
// directory. Rates count contents; reading starts with the file out of the page cache where the kernel lets
// go of it.

#include "bench/figures.hpp"
#include "store/snapshot_reader.hpp"
#include "store/snapshot_writer.hpp"
#include "support/weights.hpp"

#include <CLI/CLI.hpp>
#include <fcntl.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
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

/// GB/s of plain writes of the same bytes, several at once, with a flush at the end.
Result<double> write_raw(const Options& options, const store::SnapshotDirectory& directory,
                         const Contents& contents) {
    constexpr const char* k_name = "raw";
    const UniqueFd fd(::openat(directory.fd(), k_name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd) return make_error(ErrorCode::io_failed, "cannot write to {}", options.directory);
    const int flags = ::fcntl(fd.get(), F_GETFL);
    static_cast<void>(::fcntl(fd.get(), F_SETFL, flags | O_DIRECT));
    const auto start = Clock::now();
    {
        auto queue = store::open_io_queue();
        if (!queue) return queue.error();
        std::atomic<Bytes> left = options.bytes;
        std::atomic<bool> failed = false;
        for (Bytes at = 0; at < options.bytes; at += k_chunk)
            (*queue)->submit({store::IoRequest::Kind::write, fd.get(), contents.data(), k_chunk, at,
                              [&](Result<void> written) {
                                  if (!written) failed = true;
                                  left -= k_chunk;
                              }});
        while (left > 0) ::usleep(100);
        if (failed) return make_error(ErrorCode::io_failed, "cannot write to {}", options.directory);
    }
    ::fsync(fd.get());
    const auto result = rate(options.bytes, start);
    ::unlinkat(directory.fd(), k_name, 0);
    return result;
}

Result<void> measure(const Options& options, const char* kind, const test::ByteVector& chunk,
                     bench::Figures& figures) {
    const auto directory =
        store::SnapshotDirectory::open(options.directory + "/gpu-sleep-bench-" + std::to_string(::getpid()));
    if (!directory) return directory.error();
    Contents contents(chunk);
    store::SnapshotDescription description{{}, {}, {::getpid(), 1}, ::geteuid(), {}};
    description.extents.push_back({0x7f0000000000, options.bytes, "weights", 0});
    std::vector<double> raw;
    std::vector<double> down;
    std::vector<double> up;
    Bytes stored = 0;
    for (unsigned i = 0; i < options.repeats; ++i) {
        const auto plain = write_raw(options, **directory, contents);
        if (!plain) return plain.error();
        raw.push_back(*plain);
        auto start = Clock::now();
        store::SnapshotWriteOptions writing;
        writing.threads = options.threads;
        const auto snapshot = store::write_snapshot(*directory, description, contents, writing);
        if (!snapshot) return snapshot.error();
        down.push_back(rate(options.bytes, start));
        stored = snapshot->header.file_bytes;
        ::posix_fadvise(snapshot->file.fd(), 0, 0, POSIX_FADV_DONTNEED);
        start = Clock::now();
        const auto reader = store::SnapshotReader::open(snapshot->file.path());
        if (!reader) return reader.error();
        store::SnapshotReadOptions reading;
        reading.threads = options.threads;
        GPU_SLEEP_TRY(reader->read(contents, reading));
        up.push_back(rate(options.bytes, start));
    }
    ::rmdir((*directory)->path().c_str());
    const auto limit = bench::median(raw);
    figures.add({fmt::format("{}: raw file, written", kind), "GB/s", raw, {}, {}});
    figures.add({fmt::format("{}: snapshot, written and flushed", kind), "GB/s", down, {}, limit});
    figures.add({fmt::format("{}: snapshot, read and checked", kind), "GB/s", up, {}, {}});
    figures.add({fmt::format("{}: part of the contents that is stored", kind),
                 "",
                 {static_cast<double>(stored) / static_cast<double>(options.bytes)},
                 {},
                 {}});
    return {};
}

Result<bench::Figures> run(const Options& options) {
    bench::Figures figures(
        "snapshot_bench",
        fmt::format("{} in {}, {}", format_bytes(options.bytes), options.directory,
                    store::has_io_uring() ? "io_uring where files are not cached" : "threads"));
    GPU_SLEEP_TRY(measure(options, "bf16", test::normal_bf16(k_chunk / 2), figures));
    GPU_SLEEP_TRY(measure(options, "e4m3", test::normal_e4m3(k_chunk), figures));
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
