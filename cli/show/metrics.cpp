// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which metrics there are, what of a report each takes, and how they are written, line by line.

#include "cli/show/render.hpp"

#include "base/text.hpp"
#include "cli/show/table.hpp"

#include <fmt/format.h>

namespace gpu_sleep::cli {
namespace {

using model::Report;
using model::TagReport;

/// The labels of a sample, as they are written between braces.
class Labels {
public:
    /// These and one more. `value` may be a stranger's: it is made printable(), and escaped.
    [[nodiscard]] Labels with(std::string_view name, std::string_view value) const {
        Labels more = *this;
        more.text_ += fmt::format("{}{}=\"", text_.empty() ? "" : ",", name);
        for (const char c : printable(value)) { // which has no newline any more
            if (c == '\\' || c == '"') more.text_ += '\\';
            more.text_ += c;
        }
        more.text_ += '"';
        return more;
    }
    [[nodiscard]] const std::string& text() const noexcept { return text_; }
    friend auto operator<=>(const Labels&, const Labels&) = default;

private:
    std::string text_;
};

std::string heading(std::string_view name, std::string_view type, std::string_view help) {
    return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

std::string sample(std::string_view name, const Labels& labels, double value) {
    return fmt::format("{}{{{}}} {}\n", name, labels.text(), value);
}

/// A family of samples; its name stands behind "gpu_sleep_".
struct Family {
    std::string_view name, type, help;
};

/// All there are, in the order in which they are written.
constexpr Family k_families[] = {
    {"processes", "gauge", "Processes that gpu-sleep can put to sleep."},
    {"process_info", "gauge", "1, with labels that identify the process."},
    {"unanswered", "gauge", "Processes whose agent did not answer."},
    {"stopped", "gauge", "Processes that are stopped, so that no agent answers."},
    {"stopped_report_seconds", "gauge", "Age of a stopped process's metrics."},
    {"inhibited", "gauge", "Processes that refuse sleeps from outside."},
    {"memory_bytes", "gauge",
     "Memory of a tag by the place of its contents: gpu, host_running (in use by the GPU), host or file "
     "(before compression)."},
    {"dropped_bytes", "gauge", "Sleeping memory whose contents were dropped."},
    {"damaged_bytes", "gauge", "Sleeping memory whose contents are damaged."},
    {"residual_bytes", "gauge", "Memory that always stays on the GPU."},
    {"host_memory_held_bytes", "gauge",
     "Host memory with contents of sleeping memory. Of a process without an agent: an upper bound, or 0 if "
     "unknown."},
    {"host_memory_retained_bytes", "gauge", "Host memory with copies of awake memory, for the next sleep."},
    {"file_size_bytes", "gauge", "Size on disk of contents in files."},
    {"transitions_total", "counter",
     "Sleeps, wakes and moves that ended, by their result: done or the error."},
    {"transition_duration_seconds", "histogram",
     "Request-to-answer time of completed sleeps, wakes and moves."},
    {"asleep_byte_seconds_total", "counter", "GPU memory times the seconds for which it slept."},
    {"last_work_timestamp_seconds", "gauge",
     "When a process last had work on the GPU, in seconds since 1970."},
    // Whatever waits for room: each wake that found too little GPU memory.
    {"waiting_wakes", "gauge", "Wakes that wait for GPU memory."},
    {"waiting_wake_seconds", "gauge", "How long the first of these wakes has waited."},
    {"held_threads", "gauge", "Threads whose work on the GPU is held back now."},
    {"touches_total", "counter", "Times that work on the GPU was held back."},
    {"gpu_memory_total_bytes", "gauge", "All memory of a GPU."},
    {"gpu_memory_free_bytes", "gauge", "Free memory of a GPU."},
    {"build_info", "gauge", "1, with the version of the command."},
};

/// Their samples. What has the same labels is one sample.
class Metrics {
public:
    Metrics() {
        for (const auto& family : k_families) samples_[family.name];
    }
    /// Adds to the sample with these labels.
    void add(std::string_view family, const Labels& labels, std::uint64_t value) {
        at(family, labels).value += static_cast<double>(value);
    }
    /// Makes the sample with these labels `value` at least.
    void raise(std::string_view family, const Labels& labels, double value) {
        auto& highest = at(family, labels).value;
        highest = std::max(highest, value);
    }
    /// Adds to the histogram of how long completed transitions took.
    void add_durations(const Labels& labels, const model::TransitionCounts& counts) {
        std::size_t place = 0;
        const auto add = [&](std::string_view suffix, const Labels& its, double value) {
            auto& sample = at("transition_duration_seconds", labels, place++);
            sample = {suffix, its, sample.value + value};
        };
        double count = 0; // each bucket has those below it, too
        for (std::size_t i = 0; i < counts.done.size(); ++i) {
            count += static_cast<double>(counts.done[i]);
            const bool is_bounded = i < model::k_duration_bounds.size();
            const auto bound = is_bounded ? fmt::format("{}", model::k_duration_bounds[i]) : "+Inf";
            add("_bucket", labels.with("le", bound), count);
        }
        add("_sum", labels, counts.done_seconds);
        add("_count", labels, count);
    }
    [[nodiscard]] std::string text() const {
        std::string text;
        for (const auto& [name, type, help] : k_families) {
            const auto whole_name = fmt::format("gpu_sleep_{}", name);
            text += heading(whole_name, type, help);
            for (const auto& [key, each] : samples_.at(name))
                text += sample(fmt::format("{}{}", whole_name, each.suffix), each.labels, each.value);
        }
        return text;
    }

private:
    struct Sample {
        std::string_view suffix{}; ///< of the family's name
        Labels labels{};
        double value = 0;
    };
    /// `place`: among those that a histogram has for the same labels.
    Sample& at(std::string_view family, const Labels& labels, std::size_t place = 0) {
        return samples_.at(family).try_emplace({labels, place}, Sample{{}, labels}).first->second;
    }

    std::map<std::string_view, std::map<std::pair<Labels, std::size_t>, Sample>> samples_;
};

/// The name that it was given, or that of its program: its other arguments may be secrets, and are many.
std::string name_of(const control::Process& process, const Report* report) {
    if (report && !report->name.empty()) return report->name;
    return shortened(process.name.empty() ? to_string(control::program_of(process)) : process.name,
                     model::k_max_name_length);
}

void add_info(Metrics& metrics, const Labels& whose, const control::Process& process) {
    const auto& [notebook, kernel, job, unit, container, pod] = process.origin;
    metrics.add("process_info",
                whose.with("pid", std::to_string(process.pid))
                    .with("job", job)
                    .with("unit", unit == container ? "" : unit)
                    .with("container", container)
                    .with("pod", pod)
                    .with("notebook", notebook),
                1);
}

void add_memory(Metrics& metrics, const Labels& whose, const Report& report) {
    std::map<int, std::string> uuids;
    for (const auto& device : report.devices) uuids[device.device] = device.uuid;
    const auto gpu_of = [&](int device) { return uuids[device]; };
    for (const auto& tag : report.tags) {
        const auto labels = whose.with("gpu", gpu_of(tag.device)).with("tag", tag.tag);
        metrics.add("memory_bytes", labels.with("place", "gpu"), tag.resident);
        metrics.add("memory_bytes", labels.with("place", "host_running"), tag.host_backed);
        for (const auto store : model::k_stores)
            metrics.add("memory_bytes", labels.with("place", model::to_string(store)),
                        model::kept_in(tag, store));
        metrics.add("dropped_bytes", labels, tag.dropped);
        metrics.add("damaged_bytes", labels, tag.damaged);
    }
    for (const auto& residual : report.residual)
        if (residual.kind != model::k_residual_of_host)
            metrics.add("residual_bytes",
                        whose.with("gpu", gpu_of(residual.device)).with("kind", residual.kind),
                        residual.bytes);
    metrics.add("host_memory_held_bytes", whose, report.host_bytes);
    metrics.add("host_memory_retained_bytes", whose, report.retained_bytes);
    metrics.add("file_size_bytes", whose, report.file_bytes);
}

/// `its`: with the pid, so that no sum falls when one of several processes ends.
void add_counters(Metrics& metrics, const Labels& its, const Report& report) {
    metrics.add("asleep_byte_seconds_total", its, report.asleep_byte_seconds);
    metrics.add("touches_total", its, report.touches);
    for (const auto& counts : report.transitions) {
        const auto labels = its.with("operation", model::to_string(counts.transition));
        metrics.add("transitions_total", labels.with("result", "done"), model::done_of(counts));
        for (const auto& [code, count] : counts.failed)
            metrics.add("transitions_total", labels.with("result", traits(code).name), count);
        metrics.add_durations(labels, counts);
    }
}

void add_waiting(Metrics& metrics, const Labels& whose, const Report& report) {
    metrics.add("waiting_wakes", whose, report.wakes_waiting.size());
    metrics.raise("waiting_wake_seconds", whose, 0);
    for (const auto& wake : report.wakes_waiting) metrics.raise("waiting_wake_seconds", whose, wake.seconds);
    metrics.add("held_threads", whose, report.waiting);
}

std::string_view state_label(const Report& report) noexcept {
    return report.lost ? "lost" : model::to_string(report.state);
}

void add_process(Metrics& metrics, const Labels& whose, const Report& report, std::int64_t now) {
    metrics.add("processes", whose.with("engine", "agent").with("state", state_label(report)), 1);
    metrics.add("inhibited", whose, report.inhibited ? 1 : 0);
    add_memory(metrics, whose, report);
    add_waiting(metrics, whose, report);
    if (report.idle_seconds)
        metrics.raise("last_work_timestamp_seconds", whose,
                      static_cast<double>(now - static_cast<std::int64_t>(*report.idle_seconds)));
}

} // namespace

std::string render_metrics(const std::vector<control::Outcome>& outcomes,
                           const std::vector<driver::Gpu>& gpus, std::int64_t now) {
    Metrics metrics;
    for (const auto& outcome : outcomes) {
        const auto* const report = std::get_if<Report>(&outcome.answer);
        const auto whose = Labels()
                               .with("user", control::user_name(outcome.process.uid))
                               .with("name", name_of(outcome.process, report));
        add_info(metrics, whose, outcome.process);
        const auto& age = outcome.stopped_report_seconds;
        const bool is_stopped = age || (!report && std::string_view(silence(outcome)) == "stopped");
        if (age) metrics.raise("stopped_report_seconds", whose, *age);
        if (is_stopped) metrics.add("stopped", whose, 1);
        if (outcome.by_driver) {
            const auto state = report ? state_label(*report) : std::string_view("unknown");
            metrics.add("processes", whose.with("engine", "driver").with("state", state), 1);
            if (report) metrics.add("host_memory_held_bytes", whose, report->host_bytes);
        } else if (report) {
            add_process(metrics, whose, *report, now);
            // An older report would have a counter fall, too.
            if (!age) add_counters(metrics, whose.with("pid", std::to_string(outcome.process.pid)), *report);
        } else if (!is_stopped) {
            metrics.add("unanswered", whose, 1);
        }
    }
    for (const auto& gpu : gpus) {
        metrics.add("gpu_memory_total_bytes", Labels().with("gpu", gpu.uuid), gpu.total);
        metrics.add("gpu_memory_free_bytes", Labels().with("gpu", gpu.uuid), gpu.free);
    }
    metrics.add("build_info", Labels().with("version", GPU_SLEEP_VERSION), 1);
    return metrics.text();
}

std::string render_sleep_states(const std::vector<control::Outcome>& outcomes) {
    constexpr std::string_view k_name = "vllm:engine_sleep_state";
    auto text = heading(k_name, "gauge", "1 for the state of a process, by vLLM's names of states.");
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        const auto* const report = std::get_if<Report>(&outcomes[i].answer);
        if (!report) continue;
        Bytes kept = 0, dropped = 0, dropped_weights = 0;
        for (const auto& tag : report->tags) {
            kept += tag.kept;
            dropped += tag.dropped;
            dropped_weights += tag.tag == "weights" ? tag.dropped : 0;
        }
        const bool is_awake = report->state == model::State::awake || report->state == model::State::paused;
        const bool is_dropped = !is_awake && dropped > 0 && (kept == 0 || dropped_weights > 0);
        const std::string_view its = is_awake ? "awake" : is_dropped ? "discard_all" : "weights_offloaded";
        const auto labels = Labels()
                                .with("engine", std::to_string(i))
                                .with("model_name", name_of(outcomes[i].process, report));
        for (const std::string_view state : {"awake", "weights_offloaded", "discard_all"})
            text += sample(k_name, labels.with("sleep_state", state), state == its ? 1 : 0);
    }
    return text;
}

} // namespace gpu_sleep::cli
