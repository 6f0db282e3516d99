// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Snapshots whose descriptors a program closes, or uses for files of its own.

#include "support/descriptors.hpp"
#include "support/overlay.hpp"
#include "support/snapshots.hpp"

namespace gpu_sleep::store {
namespace {

using namespace test;

/// A snapshot, all of whose descriptors the program has closed.
struct Closed {
    explicit Closed(bool on_overlay = false) {
        if (on_overlay) overlay.emplace(directory.path());
        if (on_overlay && !*overlay) return;
        contents.add("weights", random_bytes(50'000));
        contents.description.owner = on_overlay ? ProcessIdentity{::getpid(), *own_start_time()} : k_nobody;
        auto made = written(directory, contents);
        snapshot.emplace(*std::move(made));
        path = snapshot->file.path();
        numbers = descriptors_in(directory.path());
        REQUIRE(numbers.size() == 2);
        for (const int number : numbers) ::close(number);
    }
    [[nodiscard]] Result<void> read() {
        contents.delivered.clear();
        GPU_SLEEP_TRY(snapshot->file.hold());
        const auto reader = SnapshotReader::open(snapshot->file, snapshot->header);
        return reader ? reader->read(contents, small_read()) : reader.error();
    }
    Scratch directory;
    std::optional<Overlay> overlay;
    MemoryContents contents;
    std::optional<Snapshot> snapshot;
    std::filesystem::path path;
    std::vector<int> numbers;
};

TEST_CASE("Closed descriptors: a snapshot is found by its name; others' files are not touched", "[store]") {
    Closed closed;
    std::optional<Usurper> usurper;
    if (GENERATE(false, true)) usurper.emplace(closed.numbers);
    CHECK(SnapshotReader::open(closed.snapshot->file, closed.snapshot->header).error().code ==
          ErrorCode::io_failed);
    CHECK(test::opened(closed.directory)->leftovers()->empty()); // it is locked still
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path("/"); // as daemons do
    CHECK(closed.read());
    CHECK(test::opened(closed.directory)->leftovers()->empty());
    for (const int number : descriptors_in(closed.directory.path())) ::close(number);
    CHECK(closed.read());
    closed.snapshot.reset();
    std::filesystem::current_path(before);
    CHECK(closed.directory.file_count() == 0);
    CHECK(descriptors_in(closed.directory.path()).empty());
    CHECK((!usurper || usurper->is_unharmed()));
}

TEST_CASE("Closed descriptors: no lock is left on overlayfs, and the living owner counts", "[store]") {
    Closed closed(true);
    if (!*closed.overlay) return skip("no overlay can be mounted here");
    CHECK(test::opened(closed.directory)->remove_leftovers()->empty());
    CHECK(closed.read());
}

TEST_CASE("Closed descriptors: a file let go without having been found is removed, or kept", "[store]") {
    Closed closed;
    const Usurper usurper(closed.numbers);
    const bool stays = GENERATE(false, true);
    if (stays) closed.snapshot->file.let_stay();
    closed.snapshot.reset();
    CHECK(closed.directory.file_count() == (stays ? 1U : 0U));
    CHECK(usurper.is_unharmed());
}

TEST_CASE("Closed descriptors: a snapshot that lost its name as well is missed until it is back", "[store]") {
    Closed closed;
    const auto away = closed.directory.path() / "away";
    std::filesystem::rename(closed.path, away);
    auto wanted = ErrorCode::io_failed;
    SECTION("with nothing in its place") {}
    SECTION("with another file in its place") {
        std::filesystem::copy_file(away, closed.path);
    }
    SECTION("with a link in its place") {
        std::filesystem::create_symlink(away, closed.path);
    }
    SECTION("with others' rights to it") {
        std::filesystem::rename(away, closed.path);
        REQUIRE(::chmod(closed.path.c_str(), 0640) == 0);
        wanted = ErrorCode::not_permitted;
    }
    SECTION("with others' rights to its directory") {
        std::filesystem::rename(away, closed.path);
        REQUIRE(::chmod(closed.directory.path().c_str(), 0750) == 0);
    }
    const auto failed = closed.read();
    CHECK(error_of(failed).code == wanted);
    CHECK(closed.contents.delivered.empty());
    if (std::filesystem::exists(away)) std::filesystem::rename(away, closed.path);
    REQUIRE(::chmod(closed.path.c_str(), 0600) == 0);
    REQUIRE(::chmod(closed.directory.path().c_str(), 0700) == 0);
    CHECK(closed.read());
}

TEST_CASE("Closed descriptors: nothing is written to what the program opened in their place", "[store]") {
    /// Closes and takes over the descriptors when the second chunk is asked for.
    class Closer final : public ChunkSource {
    public:
        explicit Closer(std::filesystem::path directory) : directory_(std::move(directory)) {}
        [[nodiscard]] Result<std::span<const std::byte>> take(const ChunkPlace& place) override {
            if (place.number == 1) {
                auto numbers = descriptors_in(directory_);
                for (const int number : numbers) ::close(number);
                usurper = std::make_unique<Usurper>(std::move(numbers));
            }
            return std::span<const std::byte>(bytes_).first(place.bytes);
        }
        void release(const ChunkPlace&) noexcept override {}
        std::unique_ptr<Usurper> usurper;

    private:
        std::filesystem::path directory_;
        ByteVector bytes_ = random_bytes(4 * k_mib);
    };
    const Scratch directory;
    Closer closer(directory.path());
    SnapshotDescription description{{}, {}, k_nobody, ::geteuid(), {{0x7f0000000000, 12 * k_mib, "t", 0}}};
    auto options = small_write();
    options.under_way = 1; // one after the other
    const auto written = write_snapshot(test::opened(directory), description, closer, options);
    CHECK(error_of(written).code == ErrorCode::io_failed);
    REQUIRE(closer.usurper);
    CHECK(closer.usurper->is_unharmed());
    CHECK(directory.file_count() == 0);
}

} // namespace
} // namespace gpu_sleep::store
