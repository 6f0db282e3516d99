// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-snapshot: looks at the files that hold contents of sleeping processes. Needs no GPU and no process.

#include "base/text.hpp"
#include "cli/options.hpp"
#include "cli/show/json.hpp"
#include "cli/show/output.hpp"
#include "cli/show/render.hpp"
#include "cli/show/snapshot_listing.hpp"
#include "store/snapshot_reader.hpp"

using namespace gpu_sleep;

namespace {

namespace fs = std::filesystem;

constexpr const char* k_program = "gpu-snapshot";
constexpr const char* k_examples =
    "  gpu-snapshot ls /var/cache/gpu-sleep      all snapshots there\n"
    "  gpu-snapshot ls FILE                      what one of them holds\n"
    "  gpu-snapshot verify FILE                  read and check every byte\n"
    "  gpu-snapshot clean /var/cache/gpu-sleep   delete files of ended processes\n"
    "  gpu-snapshot extract FILE --extent 3 --output weights.bin\n";
/// Not that of the commands that ask processes.
constexpr const char* k_exit_statuses = "0 done, 1 failed, 2 wrong usage or no such extent, 5 not permitted, "
                                        "6 a snapshot is damaged, 8 not enough host memory or disk space.";

struct SnapshotOptions {
    std::string path;
    bool json = false;
    std::optional<std::size_t> extent;
    std::string output;
};

int print_error(const std::string& purpose, const Error& error) {
    cli::print_error(cli::render_error(k_program, purpose, error));
    return traits(error.code).exit_status;
}

bool is_directory(const fs::path& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
}

/// Removes what processes that have ended left in the directory. Returns which files.
Result<std::vector<std::string>> remove_leftovers(const std::string& path) {
    if (!is_directory(path)) // which would be made
        return make_error(ErrorCode::invalid_argument, "'{}' is not a directory", path);
    const auto directory = GPU_SLEEP_TRY(store::SnapshotDirectory::open(path));
    const auto names = GPU_SLEEP_TRY(directory->remove_leftovers());
    const auto left = GPU_SLEEP_TRY(directory->leftovers());
    if (!left.empty())
        return make_error(ErrorCode::io_failed, "{} could not be removed from {}", left.front().text(), path);
    std::vector<std::string> removed;
    for (const auto& name : names) removed.push_back(name.text());
    std::ranges::sort(removed);
    return removed;
}

int clean(const SnapshotOptions& options) {
    const auto removed = remove_leftovers(options.path);
    if (!removed) return cli::tell_failure(k_program, {.json = options.json}, removed.error());
    return cli::print_result(k_program, options.json ? cli::to_json({}, exit_status::done, *removed) + '\n'
                                                     : cli::render_removed(*removed));
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

Result<void> read_all(const fs::path& file) {
    const auto reader = GPU_SLEEP_TRY(store::SnapshotReader::open(file));
    Verifier sink;
    store::SnapshotReadOptions reading;
    reading.under_way = Verifier::k_ahead;
    return reader.read(sink, reading);
}

/// Looks at the headers; or reads all, too, and says of each whether it is good.
int look(const SnapshotOptions& options, bool verifies) {
    const auto files = cli::find_snapshots(options.path);
    if (!files) return cli::tell_failure(k_program, {.json = options.json}, files.error());
    std::vector<cli::SnapshotFacts> found;
    int status = exit_status::done;
    for (const auto& file : *files) {
        if (verifies && cli::is_partial(file) && is_directory(options.path)) continue;
        auto facts = cli::look_at(file);
        if (verifies && !facts.error)
            if (const auto read = read_all(file); !read) facts.error = read.error();
        if (verifies) facts.is_good = !facts.error;
        const auto name = file.string();
        // One that is being written, or was given up, has no header; that is no damage.
        if (facts.error && (verifies || !facts.is_partial)) {
            const int failed =
                print_error((verifies ? "verify " : "read ") + name, cli::without(name, *facts.error));
            if (status == exit_status::done) status = failed;
        } else if (verifies && !options.json) {
            status = cli::print_result(k_program, cli::render_good(facts), status);
        }
        found.push_back(std::move(facts));
    }
    std::string text;
    if (options.json)
        text = cli::to_json(found, status) + '\n';
    else if (!verifies || found.empty())
        text = cli::render(found, !verifies && !is_directory(options.path));
    return cli::print_result(k_program, text, status);
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
            if (written < 0) return file_error(errno, "write", name_);
            content = content.subspan(static_cast<std::size_t>(written));
        }
        return {};
    }

private:
    int fd_;
    std::string name_;
    Verifier verifier_;
};

/// Returns how many bytes the extent has.
Result<Bytes> extract_to(const SnapshotOptions& options, int fd) {
    const auto reader = GPU_SLEEP_TRY(store::SnapshotReader::open(options.path));
    FileSink sink(fd, options.output);
    store::SnapshotReadOptions reading;
    reading.under_way = Verifier::k_ahead;
    reading.extents = {*options.extent};
    GPU_SLEEP_TRY(reader.read(sink, reading));
    return reader.header().description.extents[*options.extent].bytes;
}

Result<Bytes> extract_to_output(const SnapshotOptions& options) {
    if (options.output == "-") {
        const auto bytes = GPU_SLEEP_TRY(extract_to(options, STDOUT_FILENO));
        GPU_SLEEP_TRY(flush_and_close(UniqueFd(::dup(STDOUT_FILENO)), "standard output"));
        return bytes;
    }
    // Contents are as private as the snapshot is, and no other file is lost to them.
    auto file = GPU_SLEEP_TRY(WholeFile::create(options.output));
    const auto bytes = GPU_SLEEP_TRY(extract_to(options, file.fd()));
    GPU_SLEEP_TRY(file.commit());
    return bytes;
}

int extract(const SnapshotOptions& options) {
    if (options.json && options.output == "-")
        return cli::usage_error(k_program, "--json and --output - both write to standard output", true);
    const auto bytes = extract_to_output(options);
    const int status =
        bytes ? exit_status::done
              : print_error("extract from " + options.path, cli::without(options.path, bytes.error()));
    if (!options.json) return status;
    auto facts = cli::look_at(options.path);
    if (bytes)
        facts.extracted = {*options.extent, options.output, *bytes};
    else
        facts.error = bytes.error();
    return cli::print_result(k_program, cli::to_json({std::move(facts)}, status) + '\n', status);
}

/// Takes the number of an extent. Returns what is wrong with it, or nothing.
std::string read_extent(const std::string& text, SnapshotOptions& options) {
    options.extent = parse_number<std::size_t>(text);
    if (options.extent) return {};
    return fmt::format("'{}' is not the number of an extent; gpu-snapshot ls FILE shows them", text);
}

usage::Table table_of(SnapshotOptions& options) {
    const auto read = [&options](const std::string& text) { return read_extent(text, options); };
    const auto path_row = [&options](const std::string& name, const std::string& what) {
        return usage::required(usage::word_row(name, options.path, "a " + what, "A " + what));
    };
    const auto subcommand = [&options](const std::string& name, const std::string& purpose,
                                       const std::string& words, std::vector<usage::Row> rows) {
        rows.push_back(usage::brief(cli::json_row(options.json)));
        return usage::Table{"gpu-snapshot " + name, purpose, {words}, {{"Options", std::move(rows)}}};
    };
    const auto any = path_row("PATH", "snapshot, or a directory of them");
    return {k_program,
            "Reads snapshots: files with the contents of processes that gpu-sleep has put to sleep.",
            {"ls [--json] PATH", "verify [--json] PATH", "clean [--json] DIRECTORY",
             "extract --extent N --output FILE [--json] SNAPSHOT"},
            {},
            k_examples,
            k_exit_statuses,
            {subcommand("ls", "List the snapshots of a directory, or what one of them holds", "[--json] PATH",
                        {any}),
             subcommand("verify", "Read a snapshot, or all of a directory, and check every byte",
                        "[--json] PATH", {any}),
             subcommand("clean", "Delete files that processes left behind when they ended",
                        "[--json] DIRECTORY", {path_row("DIRECTORY", "directory")}),
             subcommand("extract", "Write the contents of one extent to a new file",
                        "--extent N --output FILE [--json] SNAPSHOT",
                        {path_row("SNAPSHOT", "snapshot"),
                         usage::required(usage::brief(
                             {"--extent", usage::text("N", read), "Number of the extent, as ls shows it"})),
                         usage::required(usage::brief(
                             {"-o,--output", usage::path("FILE", options.output),
                              "File to write, which must not exist yet; - for standard output"}))})}};
}

} // namespace

int main(int argc, char** argv) {
    SnapshotOptions options;
    std::string subcommand;
    if (const auto status = cli::parse(table_of(options), argc, argv, &subcommand)) return *status;
    if (subcommand == "extract") return extract(options);
    if (subcommand == "clean") return clean(options);
    return look(options, subcommand == "verify");
}
