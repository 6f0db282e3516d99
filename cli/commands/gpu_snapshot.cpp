// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-snapshot: looks at the files that hold contents of sleeping processes. Needs no GPU and no process.

#include "base/text.hpp"
#include "cli/options.hpp"
#include "cli/show/json.hpp"
#include "cli/show/output.hpp"
#include "cli/show/render.hpp"
#include "cli/show/table.hpp"
#include "store/snapshot_directory.hpp"
#include "store/snapshot_reader.hpp"

#include <nlohmann/json.hpp>
#include <poll.h>

#include <csignal>

using namespace gpu_sleep;

namespace {

namespace fs = std::filesystem;
using cli::OrderedJson;
using cli::Table;
using store::Owner;
using store::SnapshotName;

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

// ---- What is looked at, and how it is shown

struct SnapshotFacts {
    fs::path path;
    bool is_partial = false; ///< by its name: being written, or given up
    bool is_kept = false;    ///< by its name
    /// Its name and its header name different owners: somebody has renamed or replaced it.
    bool is_misnamed = false;
    Owner owner = Owner::ended;
    store::LockState lock = store::LockState::unknown; ///< unknown if nobody asked
    std::optional<store::SnapshotHeader> header;       ///< nothing if it could not be read
    /// Why it could not be read, verified or extracted from.
    std::optional<Error> error;
    std::optional<bool> is_good; ///< whether every byte could be read; nothing if nobody tried
    /// An extent that was extracted.
    struct Extracted {
        std::size_t extent = 0; ///< its number
        std::string output;     ///< the file
        Bytes bytes = 0;
    };
    std::optional<Extracted> extracted;
};

std::string state_of(const SnapshotFacts& facts) {
    if (facts.is_misnamed) return "misnamed";
    if (facts.is_kept) return "kept";
    if (!facts.header && !facts.is_partial) return "unreadable";
    // Who has it locked may live where nothing of it is seen from here.
    if (facts.lock == store::LockState::held ||
        (facts.owner == Owner::alive && facts.lock == store::LockState::unknown))
        return facts.is_partial ? "being written" : "asleep";
    if (facts.owner == Owner::ended || facts.lock == store::LockState::unlocked) return "left over";
    return facts.owner == Owner::elsewhere ? "of another machine" : "of another pid namespace";
}

/// Stored bytes of each extent.
std::vector<Bytes> stored_bytes(const store::SnapshotHeader& header) {
    std::vector<Bytes> stored(header.description.extents.size());
    for (const auto& place : store::places_of(header.description.extents))
        stored[place.extent] += header.rows[place.number].stored_bytes;
    return stored;
}

std::string ratio(Bytes stored, Bytes contents) {
    if (contents == 0) return "-";
    return fmt::format("{:.3f}", static_cast<double>(stored) / static_cast<double>(contents));
}

std::string render_extents(const store::SnapshotHeader& header) {
    Table table({">EXTENT", ">ADDRESS", ">DEVICE", "TAG", ">BYTES", ">STORED", ">STORED/BYTES"});
    const auto stored = stored_bytes(header);
    for (std::size_t i = 0; i < stored.size(); ++i) {
        const auto& extent = header.description.extents[i];
        table.add({std::to_string(i), fmt::format("{:#x}", extent.address), std::to_string(extent.device),
                   extent.tag, format_bytes(extent.bytes), format_bytes(stored[i]),
                   ratio(stored[i], extent.bytes)});
    }
    return table.text(2);
}

OrderedJson to_value(const SnapshotFacts& facts) {
    OrderedJson json = {{"path", facts.path.string()}, {"state", state_of(facts)}};
    if (facts.error) json["error"] = cli::error_value(k_program, *facts.error);
    if (facts.is_good) json["good"] = *facts.is_good;
    if (!facts.header) return json;
    const auto& description = facts.header->description;
    json["id"] = description.id;
    json["created"] = description.created;
    json["owner"] = {{"pid", description.owner.pid},
                     {"start_time", description.owner.start_time},
                     {"uid", description.uid},
                     {"alive", facts.owner == Owner::alive || facts.lock == store::LockState::held}};
    if (!description.boot.empty()) json["owner"]["boot"] = description.boot;
    json["content_bytes"] = description.content_bytes();
    json["file_bytes"] = facts.header->file_bytes;
    json["extents"] = OrderedJson::array();
    const auto stored = stored_bytes(*facts.header);
    for (std::size_t i = 0; i < stored.size(); ++i) {
        const auto& extent = description.extents[i];
        json["extents"].push_back({{"address", extent.address},
                                   {"bytes", extent.bytes},
                                   {"tag", extent.tag},
                                   {"device", extent.device},
                                   {"stored_bytes", stored[i]}});
    }
    if (facts.extracted)
        json["extracted"] = {{"extent", facts.extracted->extent},
                             {"output", facts.extracted->output},
                             {"bytes", facts.extracted->bytes}};
    return json;
}

/// `path` itself, or if it is a directory those files in it that are named as snapshots, sorted. Errors:
/// io_failed, not_permitted.
Result<std::vector<fs::path>> find_snapshots(const fs::path& path) {
    std::error_code failure;
    if (!fs::is_directory(path, failure)) return std::vector{path};
    std::vector<fs::path> files;
    for (fs::directory_iterator entry(path, failure), end; !failure && entry != end; entry.increment(failure))
        if (SnapshotName::parse(entry->path().filename().string())) files.push_back(entry->path());
    if (failure)
        return make_error(failure == std::errc::permission_denied ? ErrorCode::not_permitted
                                                                  : ErrorCode::io_failed,
                          "cannot list {}: {}", path.string(), failure.message());
    std::ranges::sort(files);
    return files;
}

/// Whether the name is that of a snapshot that is not whole.
bool is_partial(const fs::path& path) {
    const auto name = SnapshotName::parse(path.filename().string());
    return name && name->kind == SnapshotName::Kind::partial;
}

/// Reads the header.
SnapshotFacts look_at(const fs::path& path) {
    SnapshotFacts facts;
    facts.path = path;
    auto reader = store::SnapshotReader::open(path);
    if (reader)
        facts.header = reader->header();
    else
        facts.error = reader.error();
    const auto name = SnapshotName::parse(path.filename().string());
    facts.is_partial = is_partial(path);
    facts.is_kept = name && name->kind == SnapshotName::Kind::kept;
    if (!facts.header && !name) return facts;
    SnapshotName seen = name ? *name : SnapshotName{};
    if (facts.header) {
        const auto& described = facts.header->description;
        seen.owner = described.owner;
        if (!described.boot.empty()) seen.boot = described.boot;
        facts.is_misnamed = name && (name->owner != seen.owner || name->boot != seen.boot);
    }
    const auto parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
    const UniqueFd place(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!name) seen.pid_namespace = pid_namespace(); // as far as can be seen from here
    facts.owner = store::look_for_owner(seen, place.get());
    if (name && !facts.is_kept) facts.lock = store::lock_state_of(*name, place.get());
    return facts;
}

/// A table with a line for each; with `extents` also a table of what each holds.
std::string render(const std::vector<SnapshotFacts>& snapshots, bool extents) {
    if (snapshots.empty()) return "no snapshots\n";
    Table table({"SNAPSHOT", ">PID", "STATE", "CREATED", ">CONTENTS", ">FILE", ">FILE/CONTENTS"});
    std::string details;
    for (const auto& facts : snapshots) {
        const auto name = facts.path.filename().string();
        if (!facts.header) {
            table.add({name, "", state_of(facts)});
            continue;
        }
        const auto& header = *facts.header;
        const auto contents = header.description.content_bytes();
        table.add({name, std::to_string(header.description.owner.pid), state_of(facts),
                   header.description.created, format_bytes(contents), format_bytes(header.file_bytes),
                   ratio(header.file_bytes, contents)});
        if (extents) details += "\n" + render_extents(header);
    }
    return table.text() + details;
}

/// A line for each name of a leftover.
std::string render_removed(const std::vector<std::string>& removed) {
    if (removed.empty()) return "nothing is left over\n";
    std::string text;
    for (const auto& name : removed)
        text += fmt::format("removed {}: its process no longer uses it\n", printable(name));
    return text;
}

/// The JSON document. `removed` is unset if leftovers were not to be removed.
std::string to_json(const std::vector<SnapshotFacts>& snapshots, int exit_status,
                    const std::optional<std::vector<std::string>>& removed = std::nullopt) {
    auto json = cli::document(k_program, exit_status);
    for (const auto& facts : snapshots) json["snapshots"].push_back(to_value(facts));
    if (removed) json["removed"] = *removed;
    return cli::written(json);
}

// ---- What is done

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
    removed.reserve(names.size());
    for (const auto& name : names) removed.push_back(name.text());
    std::ranges::sort(removed);
    return removed;
}

int clean(const SnapshotOptions& options) {
    const auto removed = remove_leftovers(options.path);
    if (!removed) return cli::tell_failure(k_program, {.json = options.json}, removed.error());
    return cli::print_result(k_program, options.json ? to_json({}, exit_status::done, *removed) + '\n'
                                                     : render_removed(*removed));
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
    const auto files = find_snapshots(options.path);
    if (!files) return cli::tell_failure(k_program, {.json = options.json}, files.error());
    std::vector<SnapshotFacts> found;
    int status = exit_status::done;
    bool is_missing = false; // what is not there has no row
    for (const auto& file : *files) {
        if (verifies && is_partial(file) && is_directory(options.path)) continue;
        auto facts = look_at(file);
        if (verifies && !facts.error)
            if (const auto read = read_all(file); !read) facts.error = read.error();
        const bool is_gone = facts.error && facts.error->driver_status == ENOENT;
        if (is_gone && is_directory(options.path)) continue; // its process has woken since it was listed
        if (verifies) facts.is_good = !facts.error;
        const auto name = file.string();
        // One that is being written, or was given up, has no header; that is no damage.
        if (facts.error && (verifies || !facts.is_partial)) {
            status = worse_of(status, print_error((verifies ? "verify " : "read ") + name,
                                                  cli::without(name, *facts.error)));
            is_missing = is_gone;
        } else if (verifies && !options.json) {
            const auto bytes = facts.header->description.content_bytes();
            status = cli::print_result(
                k_program, fmt::format("{}: good, {}\n", printable(name), format_bytes(bytes)), status);
        }
        found.push_back(std::move(facts));
    }
    std::string text;
    if (options.json)
        text = to_json(found, status) + '\n';
    else if (!is_missing && (!verifies || found.empty()))
        text = render(found, !verifies && !is_directory(options.path));
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
            if (written < 0 && errno == EAGAIN) { // a pipe that somebody else does not want to wait for
                pollfd output{fd_, POLLOUT, 0};
                static_cast<void>(::poll(&output, 1, -1));
                continue;
            }
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
    auto facts = look_at(options.path);
    if (bytes)
        facts.extracted = {*options.extent, options.output, *bytes};
    else
        facts.error = bytes.error();
    return cli::print_result(k_program, to_json({std::move(facts)}, status) + '\n', status);
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
    std::signal(SIGXFSZ, SIG_IGN); // what is too large for ulimit -f is an error like a full disk
    SnapshotOptions options;
    std::string subcommand;
    if (const auto status = cli::parse(table_of(options), argc, argv, &subcommand)) return *status;
    if (subcommand == "extract") return extract(options);
    if (subcommand == "clean") return clean(options);
    return look(options, subcommand == "verify");
}
