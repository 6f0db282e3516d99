// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Describing what is about to be written, and its JSON, made and understood again, byte for byte.

#include "store/snapshot_description.hpp"

#include "base/checksum.hpp"
#include "base/text.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <ctime>

namespace gpu_sleep::store {

std::vector<ChunkPlace> places_of(const std::vector<SnapshotExtent>& extents,
                                  const std::vector<std::size_t>& wanted) {
    std::vector<bool> is_wanted(extents.size(), wanted.empty());
    for (const auto extent : wanted) is_wanted[extent] = true;
    std::vector<ChunkPlace> places;
    std::size_t number = 0;
    for (std::size_t i = 0; i < extents.size(); ++i)
        for (Bytes at = 0; at < extents[i].bytes; at += codec::k_chunk_bytes, ++number)
            if (is_wanted[i])
                places.push_back(
                    {i, at, static_cast<std::size_t>(std::min(codec::k_chunk_bytes, extents[i].bytes - at)),
                     number});
    return places;
}

Result<SnapshotDescription> describe_own() {
    const auto started = GPU_SLEEP_TRY(own_start_time());
    SnapshotDescription description;
    description.owner = {::getpid(), started};
    description.uid = ::geteuid();
    description.boot = boot_id();
    return description;
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

namespace {

constexpr std::string_view k_format = "gpu-sleep snapshot";
constexpr auto k_most = std::numeric_limits<std::uint64_t>::max();

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
    const auto most = std::ranges::max_element(widths, {}, &decltype(widths)::value_type::second);
    if (most != widths.end()) summary.element_width = most->first;
    summary.checksum = xxh64(std::as_bytes(rows));
    return summary;
}

/// What has a letter of its own behind a backslash, and those letters.
constexpr std::string_view k_short = "\b\f\n\r\t\"\\";
constexpr std::string_view k_letters = "bfnrt\"\\";

/// Adds `text` as JSON has it. What is no UTF-8 becomes U+FFFD.
void add_quoted(std::string& json, std::string_view text) {
    json += '"';
    while (!text.empty()) {
        const auto character = first_character(text);
        const char c = text[0];
        if (const auto known = k_short.find(c); known != std::string_view::npos)
            (json += '\\') += k_letters[known];
        else if (!character.is_valid)
            json += "\xEF\xBF\xBD";
        else if (character.code < 0x20)
            json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
            json += text.substr(0, character.bytes);
        text.remove_prefix(character.bytes);
    }
    json += '"';
}

void add_extent(std::string& json, const SnapshotExtent& extent, std::size_t first_chunk,
                const ExtentSummary& summary) {
    json += fmt::format("\n  {{\n   \"address\": \"{:#x}\",\n   \"bytes\": {},\n   \"tag\": ", extent.address,
                        extent.bytes);
    add_quoted(json, extent.tag);
    json += fmt::format(
        ",\n   \"device\": {},\n   \"first_chunk\": {},\n   \"chunks\": {},\n   \"element_width\": {},\n"
        "   \"stored_bytes\": {},\n   \"checksum\": \"{:016x}\"\n  }}",
        extent.device, first_chunk, chunk_count(extent.bytes), summary.element_width, summary.stored_bytes,
        summary.checksum);
}

/// Takes values from a text, front to back. A general parser would have to be bounded in what it keeps and
/// looks up; this one takes time and memory in proportion to the text, and throws only for want of memory.
class HeaderText {
public:
    explicit HeaderText(std::string_view text) : text_(text) {}

    /// Goes on behind the next `key`.
    [[nodiscard]] bool find(std::string_view key) {
        const auto at = text_.find(key);
        if (at == std::string_view::npos) return false;
        text_.remove_prefix(at + key.size());
        return true;
    }
    [[nodiscard]] bool take(std::string_view wanted) {
        if (!text_.starts_with(wanted)) return false;
        text_.remove_prefix(wanted.size());
        return true;
    }
    template <class T>
    [[nodiscard]] bool take_number(T& number, int base = 10) {
        const auto [end, failure] = std::from_chars(text_.data(), text_.data() + text_.size(), number, base);
        if (failure != std::errc{}) return false;
        text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
        return true;
    }
    [[nodiscard]] bool take_quoted(std::string& value) {
        value.clear();
        if (!take("\"")) return false;
        while (!text_.empty() && text_[0] != '"')
            if (!take_character(value)) return false;
        return take("\"");
    }

private:
    [[nodiscard]] bool take_character(std::string& value) {
        if (!take("\\")) {
            value += text_[0];
            text_.remove_prefix(1);
            return true;
        }
        if (text_.empty()) return false;
        if (const auto known = k_letters.find(text_[0]); known != std::string_view::npos) {
            value += k_short[known];
            text_.remove_prefix(1);
            return true;
        }
        constexpr std::size_t k_digits = 2;
        unsigned char code = 0;
        if (!take("u00") || text_.size() < k_digits) return false;
        const auto* const end = text_.data() + k_digits;
        if (std::from_chars(text_.data(), end, code, 16).ptr != end) return false;
        value += static_cast<char>(code);
        text_.remove_prefix(k_digits);
        return true;
    }

    std::string_view text_;
};

bool take_extent(HeaderText& text, SnapshotExtent& extent) {
    return text.take_number(extent.address, 16) && text.find("\"bytes\": ") &&
           text.take_number(extent.bytes) && text.find("\"tag\": ") && text.take_quoted(extent.tag) &&
           text.find("\"device\": ") && text.take_number(extent.device) && extent.bytes > 0 &&
           extent.bytes <= std::numeric_limits<std::uint64_t>::max() - extent.address;
}

/// What comes before the first extent.
bool take_front(HeaderText& text, SnapshotDescription& description) {
    if (!text.find("\"id\": ") || !text.take_quoted(description.id) || !text.find("\"created\": ") ||
        !text.take_quoted(description.created) || !text.find("\"pid\": ") ||
        !text.take_number(description.owner.pid) || !text.find("\"start_time\": ") ||
        !text.take_number(description.owner.start_time) || !text.find("\"uid\": ") ||
        !text.take_number(description.uid))
        return false;
    const bool has_boot = text.take(",\n  \"boot\": ");
    return !has_boot || (text.take_quoted(description.boot) && is_boot_id(description.boot));
}

} // namespace

std::string make_json(const SnapshotDescription& description, Bytes file_bytes,
                      std::span<const ChunkRow> rows) {
    // By hand: objects of JSON take memory even to be destroyed, and this runs in processes that may have
    // none.
    auto json =
        fmt::format("\n{{\n \"format\": \"{}\",\n \"version\": {},\n \"id\": ", k_format, k_snapshot_version);
    add_quoted(json, description.id);
    json += ",\n \"created\": ";
    add_quoted(json, description.created);
    json += fmt::format(",\n \"owner\": {{\n  \"pid\": {},\n  \"start_time\": {},\n  \"uid\": {}",
                        description.owner.pid, description.owner.start_time, description.uid);
    if (!description.boot.empty()) {
        json += ",\n  \"boot\": ";
        add_quoted(json, description.boot);
    }
    json += fmt::format("\n }},\n \"content_bytes\": {},\n \"file_bytes\": {},\n \"chunk_bytes\": {},\n"
                        " \"extents\": [",
                        description.content_bytes(), file_bytes, codec::k_chunk_bytes);
    std::size_t chunk = 0;
    for (const auto& extent : description.extents) {
        const auto chunks = chunk_count(extent.bytes);
        if (&extent != &description.extents.front()) json += ',';
        add_extent(json, extent, chunk,
                   rows.empty() ? ExtentSummary{0, k_most, k_most} : summarise(rows.subspan(chunk, chunks)));
        chunk += chunks;
    }
    return json += description.extents.empty() ? "]\n}\n" : "\n ]\n}\n";
}

std::size_t max_json_bytes(const SnapshotDescription& description) {
    return make_json(description, k_most, {}).size();
}

std::optional<SnapshotDescription> read_json(std::string_view whole) {
    HeaderText text(whole);
    SnapshotDescription description;
    if (!whole.ends_with("\n}\n") || !take_front(text, description)) return std::nullopt;
    Bytes total = 0;
    while (text.find("\"address\": \"0x")) {
        SnapshotExtent extent;
        if (!take_extent(text, extent) || extent.bytes > std::numeric_limits<Bytes>::max() / 2 - total)
            return std::nullopt;
        total += extent.bytes;
        description.extents.push_back(std::move(extent));
    }
    return description;
}

} // namespace gpu_sleep::store
