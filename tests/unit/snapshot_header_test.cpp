// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Headers of snapshots: their JSON, their lies, and their versions.

#include "base/checksum.hpp"
#include "support/snapshots.hpp"

#include <nlohmann/json.hpp>

namespace gpu_sleep::store {
namespace {

using namespace test;

TEST_CASE("Snapshots: JSON written by somebody else is refused, in little time and room", "[store]") {
    const Scratch directory;
    MemoryContents contents;
    for (int i = 0; i < 100; ++i) contents.add("weights", random_bytes(50));
    const auto snapshot = written(directory, contents);
    const auto honest = encode_header(snapshot->header);
    const auto forged = [&](std::string json, std::size_t header_bytes) {
        const auto rows = std::as_bytes(std::span(snapshot->header.rows));
        std::vector<std::byte> bytes(header_bytes);
        const auto put = [&](std::size_t at, const auto& value) {
            std::memcpy(&bytes[at], &value, sizeof value);
        };
        std::copy_n(honest.begin(), k_preamble_bytes, bytes.begin());
        std::memcpy(&bytes[k_preamble_bytes], json.data(), json.size());
        if (k_preamble_bytes + json.size() + rows.size() <= bytes.size())
            std::copy(rows.begin(), rows.end(), &bytes[k_preamble_bytes + json.size()]);
        put(20, static_cast<std::uint32_t>(json.size()));
        put(24, std::uint64_t{header_bytes});
        put(40, xxh64(std::span(bytes).subspan(k_preamble_bytes)));
        put(56, xxh64(std::span(bytes).first(56)));
        return decode_header(bytes, snapshot->header.file_bytes);
    };
    std::uint32_t json_bytes = 0;
    std::memcpy(&json_bytes, &honest[20], sizeof json_bytes);
    std::string json(reinterpret_cast<const char*>(&honest[k_preamble_bytes]), json_bytes);
    const auto whole = json;
    CHECK(forged(json, honest.size())); // the forger can write
    std::erase(json, '\n');
    for (auto at = json.find("  "); at != std::string::npos; at = json.find("  ")) json.erase(at, 1);
    // It says the same in fewer bytes than what is derived from it takes.
    const auto least = round_up(k_preamble_bytes + json.size() + std::size_t{100} * 32, k_alignment);
    REQUIRE(least < honest.size());
    CHECK(forged(json, least).error().code == ErrorCode::damaged);
    CHECK(forged(std::string(4'000'000, '['), 4'096'000).error().code == ErrorCode::damaged);
    // Members of one object, by the hundred thousand, at the front and behind honest ones.
    std::string members;
    for (int i = 0; i < 200'000; ++i) members += fmt::format("\"{:x}\":1,", i);
    const auto many_bytes = round_up(k_preamble_bytes + honest.size() + members.size(), k_alignment);
    const auto start = Clock::now();
    CHECK(forged("\n{" + members + "\"x\":1}\n", many_bytes).error().code == ErrorCode::damaged);
    const auto owner = whole.find("{\n  \"pid\"");
    REQUIRE(owner != std::string::npos);
    for (const std::size_t at : {owner + 1, whole.find("[\n  {") + 5, whole.size() - 3}) {
        auto stuffed = whole;
        stuffed.insert(at, members);
        CHECK(forged(stuffed, many_bytes).error().code == ErrorCode::damaged);
    }
    CHECK(Clock::now() - start < std::chrono::seconds(3));
}

TEST_CASE("Snapshots: the header's JSON is what a library makes of it, whatever a tag is called", "[store]") {
    SnapshotHeader header;
    header.description = {"0123", "now", {4242, 123456}, 1000, {}};
    header.description.boot = GENERATE(std::string(), std::string("0123456789abcdef0123456789abcdef"));
    for (const auto* tag : {"weights", "", "\"quoted\\\"", "line\n\r\t\b\f", "\x01\x1f\x7f",
                            "Gewichte äöü €  𝔸", "\xff", "a\xc3", "\xe2\x82", "\xc0\x80", "\xed\xa0\x80",
                            "\xf4\x90\x80\x80", "\xf0\x80\x80\x80", "\xe0\x80\x80z"}) {
        header.description.extents.clear();
        if (*tag != 0) header.description.extents.push_back({0x7f00, 5, tag, 1});
        header.rows.resize(header.description.extents.size());
        header.header_bytes = header_bytes_of(header.description);
        const auto bytes = encode_header(header);
        std::uint32_t size = 0;
        std::memcpy(&size, &bytes[20], sizeof size);
        const std::string text(reinterpret_cast<const char*>(&bytes[k_preamble_bytes]), size);
        const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
        REQUIRE(json.is_object());
        CHECK(text == "\n" + json.dump(1) + "\n");
        const auto read = need(read_json(text));
        CHECK(make_json(read, header.file_bytes, header.rows) == text);
        CHECK(read.owner == header.description.owner);
        CHECK(read.boot == header.description.boot);
        for (std::size_t i = 0; i < text.size(); ++i)
            if (read_json(std::string_view(text).substr(0, i))) FAIL("cut at byte " << i);
    }
}

TEST_CASE("Snapshots: a header that lies, with good checksums", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", normal_bf16(100'000));
    contents.add("kv_cache", random_bytes(20'000));
    const auto snapshot = written(directory, contents);
    const auto& honest = snapshot->header;
    const auto refused = [&](const auto& lie) {
        auto header = honest;
        lie(header);
        const auto decoded = decode_header(encode_header(header), honest.file_bytes);
        return !decoded && decoded.error().code == ErrorCode::damaged;
    };
    CHECK_FALSE(refused([](SnapshotHeader&) {}));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].offset += k_alignment; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].offset = 0; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[1].offset = h.rows[0].offset; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].offset = ~std::uint64_t{0} - 4095; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].stored_bytes += 4096; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].stored_bytes = 0xFFFFF000; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].used_bytes = 0; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].used_bytes = h.rows[0].content_bytes; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].content_bytes -= 1; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].shape = {0, 0}; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].shape = {3, 1}; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].shape = {2, 4}; }));
    CHECK(refused([](SnapshotHeader& h) { h.rows[0].reserved = 1; }));
    CHECK(refused([](SnapshotHeader& h) { h.file_bytes += 4096; }));
    CHECK(refused([](SnapshotHeader& h) { h.header_bytes += 4096; }));
    CHECK(refused([](SnapshotHeader& h) { h.description.extents[0].bytes = 0; }));
    CHECK(refused([](SnapshotHeader& h) {
        h.description.extents[0].bytes += codec::k_chunk_bytes;
        h.rows.push_back(h.rows[1]);
    }));
    CHECK(refused([](SnapshotHeader& h) { h.description.extents[0].address = ~std::uint64_t{0}; }));
    CHECK(refused([](SnapshotHeader& h) { std::swap(h.rows[0], h.rows[1]); }));
    CHECK(refused([](SnapshotHeader& h) { h.description.boot[31] = 'g'; }));
    CHECK(refused([](SnapshotHeader& h) { h.description.boot[31] = 'A'; }));
    CHECK(refused([](SnapshotHeader& h) { h.description.boot += '0'; }));
    // A shape that may be, but is not this chunk's, is found by the decoder.
    auto header = honest;
    header.rows[0].shape = {4, 0b1000};
    auto bytes = read_file(snapshot->file.path());
    const auto encoded = encode_header(header);
    std::copy(encoded.begin(), encoded.end(), bytes.begin());
    write_file(snapshot->file.path(), bytes);
    CHECK(read_all(snapshot->file.path(), contents).error().code == ErrorCode::damaged);
    CHECK(contents.delivered.empty());
}

TEST_CASE("Snapshots: one that does not say when its machine was started is read, too", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(5000));
    if (GENERATE(true, false)) contents.description.boot.clear(); // as before there was such a member
    const auto snapshot = written(directory, contents);
    const auto bytes = read_file(snapshot->file.path());
    const std::string text(reinterpret_cast<const char*>(bytes.data()), k_alignment);
    const bool says_so = text.find("\"boot\": \"" + boot_id() + "\"") != std::string::npos;
    CHECK(says_so == !contents.description.boot.empty());
    const auto reader = need(SnapshotReader::open(snapshot->file.path()));
    CHECK(reader.header().description.boot == contents.description.boot);
    CHECK(reader.read(contents, small_read()));
}

TEST_CASE("Snapshots: one of a later version is refused as such", "[store]") {
    SnapshotHeader header;
    header.header_bytes = header_bytes_of(header.description);
    header.file_bytes = header.header_bytes;
    auto bytes = encode_header(header);
    bytes[16] = static_cast<std::byte>(k_snapshot_version + 1);
    const auto checksum = xxh64(std::span(bytes).first(k_preamble_bytes - 8));
    std::memcpy(&bytes[k_preamble_bytes - 8], &checksum, sizeof(checksum));
    CHECK(decode_header(bytes, header.file_bytes).error().code == ErrorCode::protocol_mismatch);
}

} // namespace
} // namespace gpu_sleep::store
