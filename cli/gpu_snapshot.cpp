// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-snapshot: looks at the files that hold contents of sleeping processes. Needs no GPU and no process.

#include "cli/json.hpp"
#include "cli/new_file.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "cli/render.hpp"
#include "cli/snapshot_listing.hpp"
#include "cli/table.hpp"
#include "store/snapshot_reader.hpp"

#include <unistd.h>

#include <cerrno>
#include <iostream>

using namespace gpu_sleep;

namespace {

namespace fs = std::filesystem;

constexpr const char* k_program = "gpu-snapshot";
constexpr const char* k_examples = "  gpu-snapshot ls /var/cache/gpu-sleep      all snapshots there\n"
                                   "  gpu-snapshot ls FILE                      what one of them holds\n"
                                   "  gpu-snapshot verify FILE                  read and check every byte\n"
                                   "  gpu-snapshot extract FILE --extent 3 --output weights.bin\n";

struct Options {
    std::string path;
    bool json = false;
    std::optional<std::size_t> extent;
    std::string output;
};

int complain(const std::string& purpose, const Error& error) {
    std::cerr << cli::render_error(k_program, purpose, error);
    return traits(error.code).exit_status;
}

/// The first status that is not 0.
void keep_first(int& status, int next) {
    if (status == exit_status::done) status = next;
}

bool is_directory(const fs::path& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
}

int list(const Options& options) {
    const auto files = cli::find_snapshots(options.path);
    if (!files) {
        const int status = complain("", files.error());
        const auto text = options.json ? cli::to_json(k_program, files.error()) + '\n' : std::string();
        [[maybe_unused]] const int written = cli::print_result(k_program, text);
        return status;
    }
    std::vector<cli::SnapshotFacts> found;
    int status = exit_status::done;
    for (const auto& file : *files) {
        found.push_back(cli::look_at(file));
        // One that is being written, or was given up, has no header; that is no damage.
        if (const auto& facts = found.back(); facts.error && !facts.is_partial)
            keep_first(status, complain("read " + cli::printable(file.string()), *facts.error));
    }
    const auto text =
        options.json ? cli::to_json(found, status) + '\n' : cli::render(found, !is_directory(options.path));
    keep_first(status, cli::print_result(k_program, text));
    return status;
}

/// Takes contents and forgets them.
class Verifier final : public store::ChunkSink {
public:
    [[nodiscard]] Result<std::span<std::byte>> space(const store::ChunkPlace& place) override {
        auto& space = spaces_[next_++ % spaces_.size()];
        space.resize(static_cast<std::size_t>(codec::k_chunk_bytes));
        return std::span(space).first(place.bytes);
    }
    [[nodiscard]] Result<void> deliver(const store::ChunkPlace&, std::span<const std::byte>) override {
        return {};
    }
    static constexpr std::size_t k_ahead = 32;

private:
    std::array<std::vector<std::byte>, k_ahead> spaces_;
    std::size_t next_ = 0;
};

Result<Bytes> verify_file(const fs::path& file) {
    const auto reader = store::SnapshotReader::open(file);
    if (!reader) return reader.error();
    Verifier sink;
    store::SnapshotReadOptions reading;
    reading.ahead = Verifier::k_ahead;
    GPU_SLEEP_TRY(reader->read(sink, reading));
    return reader->header().description.content_bytes();
}

int verify(const Options& options) {
    const auto files = cli::find_snapshots(options.path);
    if (!files) return complain("", files.error());
    int status = exit_status::done;
    for (const auto& file : *files) {
        if (cli::is_partial(file) && is_directory(options.path)) continue;
        const auto name = cli::printable(file.string());
        const auto bytes = verify_file(file);
        if (bytes)
            keep_first(status, cli::print_result(k_program,
                                                 fmt::format("{}: good, {}\n", name, format_bytes(*bytes))));
        else
            keep_first(status, complain("verify " + name, bytes.error()));
    }
    return status;
}

/// Writes contents to a file, one piece after the other.
class FileSink final : public store::ChunkSink {
public:
    FileSink(int fd, const std::string& name) : fd_(fd), name_(name) {}
    [[nodiscard]] Result<std::span<std::byte>> space(const store::ChunkPlace& place) override {
        return verifier_.space(place);
    }
    [[nodiscard]] Result<void> deliver(const store::ChunkPlace&,
                                       std::span<const std::byte> content) override {
        while (!content.empty()) {
            const auto written = ::write(fd_, content.data(), content.size());
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) return cli::file_error(errno, "write", name_);
            content = content.subspan(static_cast<std::size_t>(written));
        }
        return {};
    }

private:
    int fd_;
    std::string name_;
    Verifier verifier_;
};

Result<void> extract_to(const Options& options, int fd) {
    const auto reader = store::SnapshotReader::open(options.path);
    if (!reader) return reader.error();
    FileSink sink(fd, options.output);
    store::SnapshotReadOptions reading;
    reading.ahead = Verifier::k_ahead;
    reading.extents = {*options.extent};
    return reader->read(sink, reading);
}

int extract(const Options& options) {
    const auto purpose = "extract from " + cli::printable(options.path);
    Result<void> done;
    if (options.output == "-") {
        done = extract_to(options, STDOUT_FILENO);
        if (done) done = cli::flush_and_close(UniqueFd(STDOUT_FILENO), "standard output");
    } else {
        // Contents are as private as the snapshot is, and no other file is lost to them.
        auto file = cli::NewFile::create(options.output);
        if (!file) return complain(purpose, file.error());
        done = extract_to(options, file->fd());
        if (done) done = file->commit();
    }
    return done ? exit_status::done : complain(purpose, done.error());
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app("Looks at snapshots: the files that hold contents of processes that gpu-sleep has put to "
                 "sleep.",
                 k_program);
    Options options;
    cli::add_basics(app, k_examples);
    app.require_subcommand(1);
    auto* const ls = app.add_subcommand("ls", "List the snapshots of a directory, or what one of them holds");
    ls->add_option("PATH", options.path, "A snapshot, or a directory of them")->required()->type_name("");
    ls->add_flag("--json", options.json, "Print JSON, sizes in bytes");
    auto* const check =
        app.add_subcommand("verify", "Read a snapshot, or all of a directory, and check every byte");
    check->add_option("PATH", options.path, "A snapshot, or a directory of them")->required()->type_name("");
    auto* const pull = app.add_subcommand("extract", "Write the contents of one extent to a new file");
    pull->add_option("FILE", options.path, "A snapshot")->required()->type_name("");
    pull->add_option("--extent", options.extent, "Its number, as ls shows it")->required()->type_name("N");
    pull->add_option("--output,-o", options.output, "The file, which must not exist; - for standard output")
        ->required()
        ->type_name("FILE");
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    if (ls->parsed()) return list(options);
    return check->parsed() ? verify(options) : extract(options);
}
