// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Headers of snapshots as tables and as JSON.

#include "cli/show/snapshot_listing.hpp"

#include "base/text.hpp"
#include "cli/show/json.hpp"
#include "cli/show/table.hpp"
#include "store/snapshot_reader.hpp"

#include <nlohmann/json.hpp>

namespace gpu_sleep::cli {
namespace {

namespace fs = std::filesystem;
using store::Owner;
using store::SnapshotName;

constexpr std::string_view k_snapshot_program = "gpu-snapshot";

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
    if (facts.error) json["error"] = error_value(k_snapshot_program, *facts.error);
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

} // namespace

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

bool is_partial(const fs::path& path) {
    const auto name = SnapshotName::parse(path.filename().string());
    return name && name->kind == SnapshotName::Kind::partial;
}

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

std::string render_good(const SnapshotFacts& snapshot) {
    return fmt::format("{}: good, {}\n", printable(snapshot.path.string()),
                       format_bytes(snapshot.header->description.content_bytes()));
}

std::string render_removed(const std::vector<std::string>& removed) {
    if (removed.empty()) return "nothing is left over\n";
    std::string text;
    for (const auto& name : removed)
        text += fmt::format("removed {}: its process no longer uses it\n", printable(name));
    return text;
}

std::string to_json(const std::vector<SnapshotFacts>& snapshots, int exit_status,
                    const std::optional<std::vector<std::string>>& removed) {
    auto json = document(k_snapshot_program, exit_status);
    for (const auto& facts : snapshots) json["snapshots"].push_back(to_value(facts));
    if (removed) json["removed"] = *removed;
    return written(json);
}

} // namespace gpu_sleep::cli
