// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Capture programs as a test holds them: unmodified, with or without the agent preloaded.

#pragma once

#include "support/host.hpp"

namespace gpu_sleep::test {

/// A way in which programs reach libcuda, and the build of the program that goes it.
struct Way {
    const char* name;
    const char* program;
    const char* variable; ///< in the environment
};
inline constexpr Way k_linked{"linked", "intercepted_program_linked", "WAY=linked"};
inline constexpr Way k_dlsym{"by dlsym", "intercepted_program_dlsym", "WAY=dlsym"};
inline constexpr Way k_late{"late, by dlsym of the default", "intercepted_program_late", "WAY=late"};
inline constexpr Way k_runtime{"as the runtime does", "intercepted_program_runtime", "WAY=runtime"};
inline constexpr Way k_per_thread{"as the runtime does, with a default stream a thread",
                                  "intercepted_program_runtime", "INTERCEPTED_PROGRAM_PER_THREAD=1"};

/// Whether a test goes this way: under a sanitizer, where a program takes ten times as long, only the one
/// that most programs go.
[[nodiscard]] inline bool is_tested(const Way& way) noexcept {
    return !is_sanitized() || way.name == k_runtime.name;
}

/// Starts the program without anything of gpu-sleep in it.
[[nodiscard]] Launch plain_launch(const Way& way);

/// Starts it with the agent preloaded and `variables` in its environment; by itself that captures nothing.
[[nodiscard]] Launch preloaded_launch(const Way& way, Arguments variables);

/// The same, with what gpu-run sets: all its calls are intercepted.
[[nodiscard]] Launch captured_launch(const Way& way, Arguments variables = {});

/// One that captured_launch() starts. At its end its work has touched nothing that was not there, and no
/// capture was broken, unless the test ended it.
class Captured : public Host {
public:
    explicit Captured(const Way& way, Arguments variables = {})
        : Host(captured_launch(way, std::move(variables))) {}
    ~Captured();
};

/// Small allocations share ranges, plain ones and those of a pool.
inline constexpr std::uint64_t k_in_common = 64 << 10;

/// One of its memories.
struct Piece {
    std::string number, address;
    std::string hash; ///< of the random bytes in it
};

/// What most tests allocate: not a whole number of granules.
inline constexpr std::uint64_t k_piece_bytes = std::uint64_t{5} << 20;

/// Allocates `bytes` in the way `kind` and fills them. A piece that was filled earlier has other bytes.
[[nodiscard]] Piece make_piece(Host& host, const std::string& kind, std::uint64_t bytes);

/// `piece` of another host, opened by its handle.
[[nodiscard]] Piece open_piece(Host& host, const std::string& handle, std::uint64_t bytes);

/// `piece` of `giver`, imported by a descriptor, which both close.
[[nodiscard]] Piece import_piece(Host& giver, Host& taker, const Piece& piece, std::uint64_t bytes);

/// Gives a descriptor to who receives at `path`.
void send_descriptor(int descriptor, const std::string& path);

/// Gives `taker` the pool of `giver` that can be shared, by a descriptor, which both close.
/// False if it is refused there.
[[nodiscard]] bool try_to_hand_pool_over(Host& giver, Host& taker);
void hand_pool_over(Host& giver, Host& taker);
/// `piece` of that pool, imported by it; without a hash if the program cannot reach it.
[[nodiscard]] Piece import_pointer(Host& giver, Host& taker, const Piece& piece, std::uint64_t bytes);

/// Its contents are what they were.
void check_intact(Host& host, const Piece& piece);

/// Bytes that the driver has free on device 0.
[[nodiscard]] std::uint64_t free_bytes(Host& host);

/// Work touched nothing that was not there, and no capture was broken.
void check_no_harm(Host& host);

} // namespace gpu_sleep::test
