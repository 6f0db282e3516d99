// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The JSON of a header, made and understood again, byte for byte.

#include "store/snapshot_json.hpp"

#include "base/checksum.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>

namespace gpu_sleep::store {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view k_format = "gpu-sleep snapshot";

/// What the JSON says of an extent besides its description.
struct ExtentSummary {
    unsigned element_width = 0; ///< of most of its chunks; 0 if they are stored as they are
    Bytes stored_bytes = 0;
    std::uint64_t checksum = 0; ///< XXH64 of its rows
};

ExtentSummary summarise(std::span<const ChunkRow> rows) {
    ExtentSummary summary;
    std::map<unsigned, std::size_t> widths;
    for (const auto& row : rows) {
        summary.stored_bytes += row.stored_bytes;
        ++widths[row.shape.width];
    }
    std::size_t most = 0;
    for (const auto& [width, count] : widths)
        if (count > most) {
            summary.element_width = width;
            most = count;
        }
    summary.checksum = xxh64(std::as_bytes(rows));
    return summary;
}

/// How many bytes of `text` are one character of UTF-8; 0 if it does not begin with one.
std::size_t character_bytes(std::string_view text) noexcept {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const auto lead = byte(0);
    if (lead < 0x80) return 1;
    const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return 0;
    for (std::size_t i = 1; i < bytes; ++i)
        if ((byte(i) & 0xC0U) != 0x80) return 0;
    const bool is_too_long = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
    const bool is_no_character = (lead == 0xED && byte(1) > 0x9F) || (lead == 0xF4 && byte(1) > 0x8F);
    return is_too_long || is_no_character ? 0 : bytes;
}

/// Adds `text` as JSON has it. What is no UTF-8 becomes U+FFFD.
void add_quoted(std::string& json, std::string_view text) {
    constexpr std::string_view k_short = "\b\f\n\r\t\"\\";
    constexpr std::string_view k_letters = "bfnrt\"\\";
    json += '"';
    while (!text.empty()) {
        const auto bytes = character_bytes(text);
        const char c = text[0];
        if (const auto known = k_short.find(c); known != std::string_view::npos)
            (json += '\\') += k_letters[known];
        else if (bytes == 0)
            json += "\xEF\xBF\xBD";
        else if (bytes == 1 && static_cast<unsigned char>(c) < 0x20)
            fmt::format_to(std::back_inserter(json), "\\u{:04x}", static_cast<unsigned>(c));
        else
            json += text.substr(0, bytes);
        text.remove_prefix(std::max<std::size_t>(1, bytes));
    }
    json += '"';
}

void add_extent(std::string& json, const SnapshotExtent& extent, std::size_t first_chunk,
                const ExtentSummary& summary) {
    fmt::format_to(std::back_inserter(json),
                   "\n  {{\n   \"address\": \"{:#x}\",\n   \"bytes\": {},\n   \"tag\": ", extent.address,
                   extent.bytes);
    add_quoted(json, extent.tag);
    fmt::format_to(
        std::back_inserter(json),
        ",\n   \"device\": {},\n   \"first_chunk\": {},\n   \"chunks\": {},\n   \"element_width\": {},\n"
        "   \"stored_bytes\": {},\n   \"checksum\": \"{:016x}\"\n  }}",
        extent.device, first_chunk, chunk_count(extent.bytes), summary.element_width, summary.stored_bytes,
        summary.checksum);
}

/// `summary(first row, rows)` gives what depends on the contents. Made by hand: objects of JSON take memory
/// even to be destroyed, and this runs in processes that may have none.
template <class Summary>
std::string make_json_with(const SnapshotDescription& description, Bytes file_bytes, Summary&& summary) {
    auto json =
        fmt::format("\n{{\n \"format\": \"{}\",\n \"version\": {},\n \"id\": ", k_format, k_snapshot_version);
    add_quoted(json, description.id);
    json += ",\n \"created\": ";
    add_quoted(json, description.created);
    fmt::format_to(std::back_inserter(json),
                   ",\n \"owner\": {{\n  \"pid\": {},\n  \"start_time\": {},\n  \"uid\": {}",
                   description.owner.pid, description.owner.start_time, description.uid);
    if (!description.boot.empty()) {
        json += ",\n  \"boot\": ";
        add_quoted(json, description.boot);
    }
    fmt::format_to(std::back_inserter(json),
                   "\n }},\n \"content_bytes\": {},\n \"file_bytes\": {},\n \"chunk_bytes\": {},\n"
                   " \"extents\": [",
                   description.content_bytes(), file_bytes, codec::k_chunk_bytes);
    std::size_t chunk = 0;
    for (const auto& extent : description.extents) {
        const auto chunks = chunk_count(extent.bytes);
        if (&extent != &description.extents.front()) json += ',';
        add_extent(json, extent, chunk, summary(chunk, chunks));
        chunk += chunks;
    }
    return json += description.extents.empty() ? "]\n}\n" : "\n ]\n}\n";
}
/// Whether brackets nest deeper than a header's do: what parses them takes time and memory for each level.
bool nests_too_deep(std::string_view text) {
    constexpr int k_levels = 4;
    int depth = 0;
    bool is_text = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '"') is_text = !is_text;
        if (is_text && c == '\\') ++i;
        if (is_text) continue;
        if (c == '[' || c == '{') ++depth;
        if (c == ']' || c == '}') --depth;
        if (depth > k_levels) return true;
    }
    return false;
}

// ---- Reading the JSON: whatever it holds, nothing throws --------------------------------------------------

template <class T>
std::optional<T> number(const Json& json, const char* name) {
    const auto member = json.find(name);
    if (member == json.end() || !member->is_number_integer()) return std::nullopt;
    if (member->is_number_unsigned()) {
        const auto value = member->template get<std::uint64_t>();
        if (value <= static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return static_cast<T>(value);
        return std::nullopt;
    }
    const auto value = member->template get<std::int64_t>(); // negative
    if constexpr (std::is_signed_v<T>)
        if (value >= std::numeric_limits<T>::min()) return static_cast<T>(value);
    return std::nullopt;
}

std::optional<std::string> text(const Json& json, const char* name) {
    const auto member = json.find(name);
    if (member == json.end() || !member->is_string()) return std::nullopt;
    return member->get<std::string>();
}

std::optional<std::uint64_t> hexadecimal(std::string_view digits) {
    if (digits.starts_with("0x")) digits.remove_prefix(2);
    std::uint64_t value = 0;
    const auto* const end = digits.data() + digits.size();
    const auto [at, failure] = std::from_chars(digits.data(), end, value, 16);
    if (failure != std::errc{} || at != end) return std::nullopt;
    return value;
}

std::optional<SnapshotExtent> read_extent(const Json& json) {
    const auto address = text(json, "address");
    const auto bytes = number<Bytes>(json, "bytes");
    auto tag = text(json, "tag");
    const auto device = number<int>(json, "device");
    if (!address || !bytes || *bytes == 0 || !tag || !device) return std::nullopt;
    const auto value = hexadecimal(*address);
    if (!value || *bytes > std::numeric_limits<std::uint64_t>::max() - *value) return std::nullopt;
    return SnapshotExtent{*value, *bytes, *std::move(tag), *device};
}

/// All but what depends on the contents.
std::optional<SnapshotDescription> read_description(const Json& json) {
    auto id = text(json, "id");
    auto created = text(json, "created");
    const auto owner = json.find("owner");
    const auto extents = json.find("extents");
    if (text(json, "format") != k_format || !id || !created || owner == json.end() || !owner->is_object() ||
        extents == json.end() || !extents->is_array())
        return std::nullopt;
    const auto pid = number<pid_t>(*owner, "pid");
    const auto start_time = number<std::uint64_t>(*owner, "start_time");
    const auto uid = number<std::uint32_t>(*owner, "uid");
    if (!pid || !start_time || !uid) return std::nullopt;
    SnapshotDescription description{*std::move(id), *std::move(created), {*pid, *start_time}, *uid, {}};
    if (owner->contains("boot")) {
        auto boot = text(*owner, "boot");
        if (!boot || !is_boot_id(*boot)) return std::nullopt;
        description.boot = *std::move(boot);
    }
    Bytes total = 0;
    for (const auto& each : *extents) {
        auto extent = each.is_object() ? read_extent(each) : std::nullopt;
        if (!extent || extent->bytes > std::numeric_limits<Bytes>::max() / 2 - total) return std::nullopt;
        total += extent->bytes;
        description.extents.push_back(*std::move(extent));
    }
    return description;
}

} // namespace

std::string make_json(const SnapshotDescription& description, Bytes file_bytes,
                      std::span<const ChunkRow> rows) {
    return make_json_with(description, file_bytes, [&](std::size_t first, std::size_t count) {
        return summarise(rows.subspan(first, count));
    });
}

std::size_t longest_json_bytes(const SnapshotDescription& description) {
    constexpr auto k_longest = std::numeric_limits<std::uint64_t>::max();
    return make_json_with(description, k_longest,
                          [](std::size_t, std::size_t) {
                              return ExtentSummary{0, k_longest, k_longest};
                          })
        .size();
}

std::optional<SnapshotDescription> read_json(std::string_view text) {
    if (nests_too_deep(text)) return std::nullopt;
    const auto json = Json::parse(text.begin(), text.end(), nullptr, false);
    return json.is_object() ? read_description(json) : std::nullopt;
}

} // namespace gpu_sleep::store
