// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Outcomes as text for people: what was done, how processes stand, what went wrong, and what to do then.
// Also metrics. Nothing is asked or printed here.

#pragma once

#include "control/ask.hpp"
#include "driver/management.hpp"

namespace gpu_sleep::cli {

/// The longest that a name or a command is shown.
inline constexpr std::size_t k_label_columns = 40;

[[nodiscard]] std::string_view state_words(model::State state) noexcept;
[[nodiscard]] std::string_view state_words(const model::Report& report) noexcept;
/// The name that it was given, or else its program's; see display_name().
[[nodiscard]] std::string label(const control::Process& process, const model::Report& report);
[[nodiscard]] std::string joined(const std::vector<std::string>& words);
/// Whether it is the dry run of a pause, or of the wake of one, that would not be in vain.
[[nodiscard]] bool rehearses_pause(const model::Report& report) noexcept;
/// Whether something was done, or would be.
[[nodiscard]] bool does_something(const model::Report& report) noexcept;
/// What its devices say is released, all together.
[[nodiscard]] Bytes released(const model::Report& report);

/// "gate shut: work on the GPU waits; 3 threads wait, the last in cuLaunchKernel; held 17 times so far".
/// Where `request` is of some tags, also what lets the rest of the program work.
[[nodiscard]] std::string gate_line(const model::Report& report,
                                    const model::SleepRequest* request = nullptr);
/// "sleeps are inhibited for another 3 h 59 min".
[[nodiscard]] std::string inhibition_line(const model::Report& report);
/// "stays on GPU 0: managed 1.00 GiB in 3 allocations (the driver moves it by itself)".
[[nodiscard]] std::string residual_line(const model::Residual& residual);
/// What the process keeps in files.
[[nodiscard]] Bytes in_files(const model::Report& report);
/// "13.0 GiB of host memory is retained for the next sleep".
[[nodiscard]] std::string retained_line(const model::Report& report);
/// "the driver has also removed the rest from the GPU: 524.0 MiB".
[[nodiscard]] std::string deep_line(const model::Report& report);
/// What to do about contents that are damaged.
[[nodiscard]] std::string damaged_line(const control::Process& process);

/// What a sleep or a wake did, or would do: a line, a table of devices, and notes. `request`: the sleep that
/// was asked for, if that is known; `is_live`: what was asked for is a move to host memory.
[[nodiscard]] std::string render_operation(const control::Process& process, const model::Report& report,
                                           const model::SleepRequest* request = nullptr,
                                           bool is_live = false);

/// The same where the driver did it, which knows no tags.
[[nodiscard]] std::string render_driver_operation(const control::Process& process,
                                                  const model::Report& report);

/// "80.0 GiB of GPU memory freed in all", where several have done something; else empty.
[[nodiscard]] std::string render_total(const std::vector<control::Outcome>& outcomes);

/// A line that says what has become of all that go together. `sleep` is what was asked, or null for a wake.
[[nodiscard]] std::string render_together(const std::vector<control::Outcome>& outcomes,
                                          const model::SleepRequest* sleep);

/// Whether sleeps of a process are refused: a line.
[[nodiscard]] std::string render_inhibition(const control::Process& process, const model::Report& report);

/// For gpu-reclaim --why: when the process worked last, what a sleep would free, what prevents it, and
/// how long waking would take. `report` is of a dry run.
[[nodiscard]] std::string render_reasons(const control::Process& process, const model::Report& report);

/// How much a listing says of each process.
enum class Detail : std::uint8_t {
    some,
    all, ///< also what it cannot do
};

/// The listing of gpu-ps: for each process a line, and one for each of its tags on each device. `link_rate`:
/// the most that a GPU reads of host memory, in bytes a second; 0: not known.
[[nodiscard]] std::string render_listing(const std::vector<control::Outcome>& outcomes,
                                         Detail detail = Detail::some, double link_rate = 0);

/// What standard error gets when a request failed: "PROGRAM: cannot PURPOSE: REASON; ADVICE\n", or where that
/// is long a line each for the reason, for what to do now, and for what to do the next time. `purpose`
/// names the process, such as "wake 4242 (python3 serve.py)"; empty when there was no process to speak of,
/// and the line then begins with the reason. `outcome`: see advice_from().
[[nodiscard]] std::string render_error(std::string_view program, std::string_view purpose, const Error& error,
                                       const control::Outcome* outcome = nullptr);

/// The same of an outcome; empty where it did not fail. `purpose` has "{}" in place of the process.
[[nodiscard]] std::string render_failure(std::string_view program, std::string_view purpose,
                                         const control::Outcome& outcome);

/// `error` with "it" in place of `subject` (a title() or a file), for a sentence that has named it already.
[[nodiscard]] Error without(const std::string& subject, Error error);

/// One line for the person who ran `program`; may be empty. That of the table of errors, unless it does
/// not apply to this command, or to what a process was asked for, `outcome`, null where none was. It then
/// names that process.
[[nodiscard]] std::string advice_from(std::string_view program, const Error& error,
                                      const control::Outcome* outcome = nullptr);

/// A line for each sleep and wake, and how much they gave back.
[[nodiscard]] std::string render_history(const std::vector<model::Event>& events, double gib_hours);

// ---- The table of gpu-ps, which --watch keeps on a terminal

/// The orders that processes may have, separated by '|': most GPU or host memory first, idle for longest
/// first.
inline constexpr const char* k_orders = "gpu|host|idle|pid|name";

/// Sorts by `order`, one of those, and what is equal there by pid. Who does not answer comes last.
void sort(std::vector<control::Outcome>& outcomes, std::string_view order);

/// A line with the sums, one for each of `gpus`, and a table with a line for each process and why it waits,
/// `columns` wide at most: names and reasons are cut. `chosen`: the process with a mark.
[[nodiscard]] std::string render_live(const std::vector<control::Outcome>& outcomes, std::size_t columns,
                                      const std::vector<driver::Gpu>& gpus = {},
                                      std::optional<pid_t> chosen = {});

/// `text`, which is render_live()'s, with as many rows less at the top that the chosen one is among `room`
/// lines.
[[nodiscard]] std::string scrolled(std::string_view text, std::size_t room);

/// The process that is chosen once `key`, 'j' for the next and 'k' for the one before, was pressed.
[[nodiscard]] std::optional<pid_t> choose(const std::vector<control::Outcome>& outcomes,
                                          std::optional<pid_t> chosen, char key);

// ---- Metrics in the text format of Prometheus

/// All families of metrics, each with its HELP and TYPE, also those that nobody has. gpu-ps(1) describes
/// them. `gpus`: the machine's, as far as they are known; `now`: seconds since 1970. Labels are the UUID of a
/// GPU, the user and the name of a process: processes with the same are added up. Source: Prometheus,
/// Exposition formats, Text-based format.
[[nodiscard]] std::string render_metrics(const std::vector<control::Outcome>& outcomes,
                                         const std::vector<driver::Gpu>& gpus, std::int64_t now);

/// vLLM's gauge of how an engine sleeps, for each process that answered.
[[nodiscard]] std::string render_sleep_states(const std::vector<control::Outcome>& outcomes);

} // namespace gpu_sleep::cli
