// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Starting capture programs and talking to them.

#include "intercepted_host.hpp"

#include "base/sockets.hpp"
#include "support/descriptor_message.hpp"
#include "support/tree.hpp"

#include <fmt/format.h>

namespace gpu_sleep::test {

Launch plain_launch(const Way& way) {
    return {{command_file(way.program)}, {way.variable}};
}

Launch preloaded_launch(const Way& way, Arguments variables) {
    variables.push_back(way.variable);
    variables.push_back("LD_PRELOAD=" + agent_file());
    if (is_sanitized()) {
        // The agent comes before the runtime of the sanitizer, which it brings along.
        const char* options = std::getenv("ASAN_OPTIONS");
        variables.push_back(fmt::format("ASAN_OPTIONS={}:verify_asan_link_order=0", options ? options : ""));
    }
    return {{command_file(way.program)}, std::move(variables)};
}

Launch captured_launch(const Way& way, Arguments variables) {
    variables.push_back("GPU_SLEEP_CAPTURE=1");
    return preloaded_launch(way, std::move(variables));
}

Captured::~Captured() {
    try {
        if (can_be_asked()) CHECK(ask("faults") == "ok 0 0");
    } catch (const ProcessFailure& failure) {
        FAIL_CHECK(failure.what());
    }
}

Piece make_piece(Host& host, const std::string& kind, std::uint64_t bytes) {
    static int seed = 0;
    Piece piece;
    std::istringstream(host.tell(fmt::format("alloc {} {}", kind, bytes))) >> piece.number >> piece.address;
    piece.hash = host.tell(fmt::format("fill {} {}", piece.number, ++seed));
    return piece;
}

Piece open_piece(Host& host, const std::string& handle, std::uint64_t bytes) {
    Piece piece;
    std::istringstream(host.tell(fmt::format("open {} {}", handle, bytes))) >> piece.number >> piece.address;
    piece.hash = host.tell("hash " + piece.number);
    return piece;
}

Piece import_piece(Host& giver, Host& taker, const Piece& piece, std::uint64_t bytes) {
    const Scratch scratch;
    const auto path = scratch.file("socket");
    taker.process().send(fmt::format("import {} {}", path, bytes));
    giver.tell(fmt::format("export {} {}", piece.number, path));
    const auto answer = taker.process().read_line();
    INFO(answer);
    REQUIRE(answer.substr(0, 3) == "ok ");
    Piece made;
    std::istringstream(answer.substr(3)) >> made.number >> made.address;
    made.hash = taker.tell("hash " + made.number);
    return made;
}

void send_descriptor(int descriptor, const std::string& path) {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(becomes_true([&] { return connect_unix(socket.get(), *unix_address(path)) == 0; }));
    const DescriptorMessage message(descriptor);
    REQUIRE(::sendmsg(socket.get(), &message.header, MSG_NOSIGNAL) == 1);
}

bool try_to_hand_pool_over(Host& giver, Host& taker) {
    const Scratch scratch;
    const auto path = scratch.file("socket");
    taker.process().send("import_pool " + path);
    giver.tell("export_pool " + path);
    return taker.process().read_line().starts_with("ok");
}

void hand_pool_over(Host& giver, Host& taker) {
    REQUIRE(try_to_hand_pool_over(giver, taker));
}

Piece import_pointer(Host& giver, Host& taker, const Piece& piece, std::uint64_t bytes) {
    const auto pointer = giver.tell("share " + piece.number);
    Piece made;
    std::istringstream(taker.tell(fmt::format("import_pointer {} {}", pointer, bytes))) >> made.number >>
        made.address;
    if (const auto answer = taker.ask("hash " + made.number); answer.starts_with("ok "))
        made.hash = answer.substr(3);
    return made;
}

void check_intact(Host& host, const Piece& piece) {
    INFO("memory " << piece.number << " at " << piece.address);
    CHECK(host.tell("hash " + piece.number) == piece.hash);
}

std::uint64_t free_bytes(Host& host) {
    return std::stoull(host.tell("free_bytes"));
}

void check_no_harm(Host& host) {
    CHECK(host.tell("faults") == "0 0");
}

} // namespace gpu_sleep::test
