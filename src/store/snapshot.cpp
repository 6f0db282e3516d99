// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The header: preamble, JSON, rows of chunks.

#include "store/snapshot.hpp"

#include "base/checksum.hpp"

#include <nlohmann/json.hpp>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

namespace gpu_sleep::store {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view k_magic = "GPU-SLEEP-SNAP\r\n"; // sixteen characters
constexpr std::uint32_t k_version = 1;
constexpr std::string_view k_format = "gpu-sleep snapshot";

/// The first bytes of the file, little endian.
struct Preamble {
    std::array<char, 16> magic{};
    std::uint32_t version = 0;
    std::uint32_t json_bytes = 0;
    std::uint64_t header_bytes = 0;
    std::uint64_t file_bytes = 0;
    std::uint64_t header_checksum = 0; ///< XXH64 of the header behind the preamble
    std::uint64_t reserved = 0;        ///< 0
    std::uint64_t checksum = 0;        ///< XXH64 of the preamble up to here
};
static_assert(sizeof(Preamble) == k_preamble_bytes);

template <class T>
std::span<const std::byte> bytes_of(const T& value, std::size_t count = sizeof(T)) {
    return std::as_bytes(std::span(&value, 1)).first(count);
}

std::uint64_t checksum_of(const Preamble& preamble) {
    return xxh64(bytes_of(preamble, offsetof(Preamble, checksum)));
}

Error damaged(std::string_view what) {
    return make_error(ErrorCode::damaged, "the snapshot is damaged: {}", what);
}

std::size_t chunk_count(Bytes bytes) noexcept {
    return static_cast<std::size_t>((bytes + codec::k_chunk_bytes - 1) / codec::k_chunk_bytes);
}

/// What the JSON says of an extent besides its description.
struct ExtentSummary {
    unsigned element_width = 0; ///< of most of its chunks; 0 if they are stored as they are
    Bytes stored_bytes = 0;
    std::uint64_t checksum = 0; ///< XXH64 of its rows
    friend bool operator==(const ExtentSummary&, const ExtentSummary&) = default;
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
std::string make_json(const SnapshotDescription& description, Bytes file_bytes, Summary&& summary) {
    auto json = fmt::format("\n{{\n \"format\": \"{}\",\n \"version\": {},\n \"id\": ", k_format, k_version);
    add_quoted(json, description.id);
    json += ",\n \"created\": ";
    add_quoted(json, description.created);
    fmt::format_to(std::back_inserter(json),
                   ",\n \"owner\": {{\n  \"pid\": {},\n  \"start_time\": {},\n  \"uid\": {}\n }},\n"
                   " \"content_bytes\": {},\n \"file_bytes\": {},\n \"chunk_bytes\": {},\n \"extents\": [",
                   description.owner.pid, description.owner.start_time, description.uid,
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

/// What the JSON takes at most.
std::size_t json_room(const SnapshotDescription& description) {
    constexpr auto k_longest = std::numeric_limits<std::uint64_t>::max();
    return make_json(description, k_longest,
                     [](std::size_t, std::size_t) {
                         return ExtentSummary{0, k_longest, k_longest};
                     })
        .size();
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
    Bytes total = 0;
    for (const auto& each : *extents) {
        auto extent = each.is_object() ? read_extent(each) : std::nullopt;
        if (!extent || extent->bytes > std::numeric_limits<Bytes>::max() / 2 - total) return std::nullopt;
        total += extent->bytes;
        description.extents.push_back(*std::move(extent));
    }
    return description;
}

/// Whether the rows are of the extents' chunks, and with the header fill the file without gap or overlap.
bool holds_together(const SnapshotHeader& header, const std::vector<ChunkPlace>& places) {
    std::vector<std::pair<Bytes, Bytes>> spans; // begin and size
    for (std::size_t i = 0; i < places.size(); ++i) {
        const auto& row = header.rows[i];
        if (row.content_bytes != places[i].bytes || row.reserved != 0 || !codec::is_valid(row.shape) ||
            row.stored_bytes != round_up(row.used_bytes, k_alignment) || row.used_bytes == 0)
            return false;
        if (row.shape.width == 0 ? row.used_bytes != row.content_bytes : row.used_bytes >= row.content_bytes)
            return false;
        spans.emplace_back(row.offset, row.stored_bytes);
    }
    std::sort(spans.begin(), spans.end());
    auto end = header.header_bytes;
    for (const auto& [begin, bytes] : spans) {
        if (begin != end) return false;
        end += bytes;
    }
    return end == header.file_bytes;
}

} // namespace

Bytes SnapshotDescription::content_bytes() const noexcept {
    Bytes sum = 0;
    for (const auto& extent : extents) sum += extent.bytes;
    return sum;
}

std::vector<ChunkPlace> places_of(const std::vector<SnapshotExtent>& extents) {
    std::vector<ChunkPlace> places;
    for (std::size_t i = 0; i < extents.size(); ++i)
        for (Bytes at = 0; at < extents[i].bytes; at += codec::k_chunk_bytes)
            places.push_back({i, at,
                              static_cast<std::size_t>(std::min(codec::k_chunk_bytes, extents[i].bytes - at)),
                              places.size()});
    return places;
}

Bytes header_bytes_of(const SnapshotDescription& description) {
    Bytes rows = 0;
    for (const auto& extent : description.extents) rows += chunk_count(extent.bytes);
    return round_up(k_preamble_bytes + json_room(description) + rows * sizeof(ChunkRow), k_alignment);
}

Bytes most_file_bytes(const SnapshotDescription& description) {
    auto bytes = header_bytes_of(description);
    for (const auto& extent : description.extents) bytes += round_up(extent.bytes, k_alignment);
    return bytes;
}

std::vector<std::byte> encode_header(const SnapshotHeader& header) {
    const auto json = make_json(header.description, header.file_bytes, [&](std::size_t first, std::size_t n) {
        return summarise(std::span(header.rows).subspan(first, n));
    });
    std::vector<std::byte> bytes(header.header_bytes);
    std::memcpy(&bytes[k_preamble_bytes], json.data(), json.size());
    if (!header.rows.empty())
        std::memcpy(&bytes[k_preamble_bytes + json.size()], header.rows.data(),
                    header.rows.size() * sizeof(ChunkRow));
    Preamble preamble;
    std::copy(k_magic.begin(), k_magic.end(), preamble.magic.begin());
    preamble.version = k_version;
    preamble.json_bytes = static_cast<std::uint32_t>(json.size());
    preamble.header_bytes = header.header_bytes;
    preamble.file_bytes = header.file_bytes;
    preamble.header_checksum = xxh64(std::span(bytes).subspan(k_preamble_bytes));
    preamble.checksum = checksum_of(preamble);
    std::memcpy(bytes.data(), &preamble, sizeof(preamble));
    return bytes;
}

Result<Bytes> read_preamble(std::span<const std::byte, k_preamble_bytes> bytes, Bytes file_bytes) {
    Preamble preamble;
    std::memcpy(&preamble, bytes.data(), sizeof(preamble));
    if (!std::equal(k_magic.begin(), k_magic.end(), preamble.magic.begin()))
        return damaged("it does not begin as a snapshot");
    if (preamble.checksum != checksum_of(preamble))
        return damaged("the checksum of its first bytes is wrong");
    if (preamble.version != k_version)
        return make_error(ErrorCode::protocol_mismatch,
                          "the snapshot is of version {}, and this program knows version {}",
                          preamble.version, k_version);
    if (preamble.file_bytes != file_bytes)
        return make_error(ErrorCode::damaged, "the snapshot is damaged: it has {} bytes of {}", file_bytes,
                          preamble.file_bytes);
    if (preamble.header_bytes > std::min(file_bytes, k_most_header_bytes) ||
        preamble.header_bytes % k_alignment != 0 || preamble.reserved != 0 ||
        k_preamble_bytes + Bytes{preamble.json_bytes} > preamble.header_bytes)
        return damaged("its header has a wrong size");
    return preamble.header_bytes;
}

Result<SnapshotHeader> decode_header(std::span<const std::byte> bytes, Bytes file_bytes) {
    if (bytes.size() < k_preamble_bytes) return damaged("it is too short");
    const auto header_bytes = read_preamble(bytes.first<k_preamble_bytes>(), file_bytes);
    if (!header_bytes) return header_bytes.error();
    if (*header_bytes != bytes.size()) return damaged("its header has a wrong size");
    Preamble preamble;
    std::memcpy(&preamble, bytes.data(), sizeof(preamble));
    auto rest = bytes.subspan(k_preamble_bytes);
    if (preamble.header_checksum != xxh64(rest)) return damaged("the checksum of its header is wrong");

    const auto* const begin = reinterpret_cast<const char*>(rest.data());
    if (nests_too_deep({begin, preamble.json_bytes})) return damaged("its header cannot be understood");
    const auto json = Json::parse(begin, begin + preamble.json_bytes, nullptr, false);
    auto description = json.is_object() ? read_description(json) : std::nullopt;
    if (!description) return damaged("its header cannot be understood");
    // What is derived below is written into as many bytes.
    if (*header_bytes != header_bytes_of(*description)) return damaged("its header has a wrong size");
    rest = rest.subspan(preamble.json_bytes);
    Bytes rows = 0;
    for (const auto& extent : description->extents) rows += chunk_count(extent.bytes);
    if (rows > rest.size() / sizeof(ChunkRow)) return damaged("its header is too small for its contents");

    SnapshotHeader header{*std::move(description), {}, *header_bytes, file_bytes};
    header.rows.resize(static_cast<std::size_t>(rows));
    if (rows > 0) std::memcpy(header.rows.data(), rest.data(), header.rows.size() * sizeof(ChunkRow));
    if (!holds_together(header, places_of(header.description.extents)))
        return damaged("the places of its chunks do not hold together");
    // What is derived must be what would be written, byte for byte.
    const auto again = encode_header(header);
    if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()))
        return damaged("its header contradicts itself");
    return header;
}

Result<std::string> make_snapshot_id() {
    std::array<std::uint8_t, 16> random{};
    if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
        return errno_error(ErrorCode::io_failed, errno, "getrandom", "cannot name a snapshot");
    std::string id;
    for (const auto byte : random) id += fmt::format("{:02x}", byte);
    return id;
}

std::string utc_now() {
    const auto now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                       parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

} // namespace gpu_sleep::store
