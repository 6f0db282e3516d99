// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which metrics there are, what of a report each takes, and how they are written, line by line.

#include "cli/show/metrics.hpp"

#include "base/text.hpp"
#include "cli/show/table.hpp"

#include <concepts>
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

template <class T>
std::string sample(std::string_view name, const Labels& labels, T value) {
    return fmt::format("{}{{{}}} {}\n", name, labels.text(), value);
}

/// A gauge or a counter. What has the same labels is one sample.
class Family {
public:
    Family(std::string_view name, std::string_view type, std::string_view help)
        : name_(name), type_(type), help_(help) {}

    /// Adds to the sample with these labels.
    template <std::integral T>
    void add(const Labels& labels, T value) {
        samples_[labels] += static_cast<double>(value);
    }
    /// Makes the sample with these labels `value` at least.
    void raise(const Labels& labels, double value) {
        const auto [sample, is_new] = samples_.emplace(labels, value);
        if (!is_new) sample->second = std::max(sample->second, value);
    }
    [[nodiscard]] std::string text() const {
        auto text = heading(name_, type_, help_);
        for (const auto& [labels, value] : samples_) text += sample(name_, labels, value);
        return text;
    }

private:
    std::string_view name_, type_, help_;
    std::map<Labels, double> samples_;
};

/// A histogram of the time that completed transitions took.
class HistogramFamily {
public:
    HistogramFamily(std::string_view name, std::string_view help) : name_(name), help_(help) {}

    /// Adds to the histogram with these labels.
    void add(const Labels& labels, const model::TransitionCounts& counts) {
        auto& times = histograms_[labels];
        for (std::size_t i = 0; i < counts.done.size(); ++i) times.counts[i] += counts.done[i];
        times.seconds += counts.done_seconds;
    }
    [[nodiscard]] std::string text() const {
        auto text = heading(name_, "histogram", help_);
        const auto part = [this](std::string_view suffix) { return fmt::format("{}_{}", name_, suffix); };
        for (const auto& [labels, times] : histograms_) {
            std::uint64_t count = 0; // each bucket has those below it, too
            for (std::size_t i = 0; i < times.counts.size(); ++i) {
                count += times.counts[i];
                const bool is_bounded = i < model::k_duration_bounds.size();
                const auto bound = is_bounded ? fmt::format("{}", model::k_duration_bounds[i]) : "+Inf";
                text += sample(part("bucket"), labels.with("le", bound), count);
            }
            text += sample(part("sum"), labels, times.seconds);
            text += sample(part("count"), labels, count);
        }
        return text;
    }

private:
    struct Times {
        model::DurationCounts counts{};
        double seconds = 0;
    };
    std::string_view name_, help_;
    std::map<Labels, Times> histograms_;
};

/// All families, in the order in which they are written.
struct Metrics {
    Family processes{"gpu_sleep_processes", "gauge", "Processes that gpu-sleep can put to sleep."};
    Family info{"gpu_sleep_process_info", "gauge", "1, with labels that identify the process."};
    Family unanswered{"gpu_sleep_unanswered", "gauge", "Processes whose agent did not answer."};
    Family stopped{"gpu_sleep_stopped", "gauge", "Processes that are stopped, so that no agent answers."};
    Family stopped_report{"gpu_sleep_stopped_report_seconds", "gauge", "Age of a stopped process's metrics."};
    Family inhibited{"gpu_sleep_inhibited", "gauge", "Processes that refuse sleeps from outside."};
    Family memory{"gpu_sleep_memory_bytes", "gauge",
                  "Memory of a tag by the place of its contents: gpu, host_running (in use by the GPU), host "
                  "or file (before compression)."};
    Family dropped{"gpu_sleep_dropped_bytes", "gauge", "Sleeping memory whose contents were dropped."};
    Family damaged{"gpu_sleep_damaged_bytes", "gauge", "Sleeping memory whose contents are damaged."};
    Family residual{"gpu_sleep_residual_bytes", "gauge", "Memory that always stays on the GPU."};
    Family host_held{"gpu_sleep_host_memory_held_bytes", "gauge",
                     "Host memory with contents of sleeping memory. Of a process without an agent: an upper "
                     "bound, or 0 if unknown."};
    Family host_retained{"gpu_sleep_host_memory_retained_bytes", "gauge",
                         "Host memory with copies of awake memory, for the next sleep."};
    Family files{"gpu_sleep_file_size_bytes", "gauge", "Size on disk of contents in files."};
    Family transitions{"gpu_sleep_transitions_total", "counter",
                       "Sleeps, wakes and moves that ended, by their result: done or the error."};
    HistogramFamily durations{"gpu_sleep_transition_duration_seconds",
                              "Request-to-answer time of completed sleeps, wakes and moves."};
    Family given_back{"gpu_sleep_asleep_byte_seconds_total", "counter",
                      "GPU memory times the seconds for which it slept."};
    Family last_work{"gpu_sleep_last_work_timestamp_seconds", "gauge",
                     "When a process last had work on the GPU, in seconds since 1970."};
    // Whatever waits for room: each wake that found too little GPU memory.
    Family waiting{"gpu_sleep_waiting_wakes", "gauge", "Wakes that wait for GPU memory."};
    Family waited{"gpu_sleep_waiting_wake_seconds", "gauge", "How long the first of these wakes has waited."};
    Family held_threads{"gpu_sleep_held_threads", "gauge", "Threads whose work on the GPU is held back now."};
    Family touches{"gpu_sleep_touches_total", "counter", "Times that work on the GPU was held back."};
    Family gpu_total{"gpu_sleep_gpu_memory_total_bytes", "gauge", "All memory of a GPU."};
    Family gpu_free{"gpu_sleep_gpu_memory_free_bytes", "gauge", "Free memory of a GPU."};
    Family build{"gpu_sleep_build_info", "gauge", "1, with the version of the command."};

    [[nodiscard]] std::string text() const {
        std::string text;
        for (const auto* family :
             {&processes, &info, &unanswered, &stopped, &stopped_report, &inhibited, &memory, &dropped,
              &damaged, &residual, &host_held, &host_retained, &files, &transitions})
            text += family->text();
        text += durations.text();
        for (const auto* family : {&given_back, &last_work, &waiting, &waited, &held_threads, &touches,
                                   &gpu_total, &gpu_free, &build})
            text += family->text();
        return text;
    }
};

/// The name that it was given, or that of its program: its other arguments may be secrets, and are many.
std::string name_of(const control::Process& process, const Report* report) {
    if (report && !report->name.empty()) return report->name;
    return shortened(process.name.empty() ? to_string(control::program_of(process)) : process.name,
                     model::k_max_name_length);
}

void add_info(Metrics& metrics, const Labels& whose, const control::Process& process) {
    const auto& [notebook, kernel, job, unit, container, pod] = process.origin;
    metrics.info.add(whose.with("pid", std::to_string(process.pid))
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
        metrics.memory.add(labels.with("place", "gpu"), tag.resident);
        metrics.memory.add(labels.with("place", "host_running"), tag.host_backed);
        for (const auto store : model::k_stores)
            metrics.memory.add(labels.with("place", model::to_string(store)), model::kept_in(tag, store));
        metrics.dropped.add(labels, tag.dropped);
        metrics.damaged.add(labels, tag.damaged);
    }
    for (const auto& residual : report.residual)
        if (residual.kind != model::k_residual_of_host)
            metrics.residual.add(whose.with("gpu", gpu_of(residual.device)).with("kind", residual.kind),
                                 residual.bytes);
    metrics.host_held.add(whose, report.host_bytes);
    metrics.host_retained.add(whose, report.retained_bytes);
    metrics.files.add(whose, report.file_bytes);
}

void add_transitions(Metrics& metrics, const Labels& whose, const Report& report) {
    for (const auto& counts : report.transitions) {
        const auto labels = whose.with("operation", model::to_string(counts.transition));
        metrics.transitions.add(labels.with("result", "done"), model::done_of(counts));
        for (const auto& [code, count] : counts.failed)
            metrics.transitions.add(labels.with("result", traits(code).name), count);
        metrics.durations.add(labels, counts);
    }
}

void add_waiting(Metrics& metrics, const Labels& whose, const Report& report) {
    metrics.waiting.add(whose, report.wakes_waiting.size());
    metrics.waited.raise(whose, 0);
    for (const auto& wake : report.wakes_waiting) metrics.waited.raise(whose, wake.seconds);
    metrics.held_threads.add(whose, report.waiting);
    metrics.touches.add(whose, report.touches);
}

std::string_view state_label(const Report& report) noexcept {
    return report.lost ? "lost" : model::to_string(report.state);
}

void add_process(Metrics& metrics, const Labels& whose, const Report& report, std::int64_t now) {
    metrics.processes.add(whose.with("engine", "agent").with("state", state_label(report)), 1);
    metrics.inhibited.add(whose, report.inhibited ? 1 : 0);
    add_memory(metrics, whose, report);
    add_transitions(metrics, whose, report);
    add_waiting(metrics, whose, report);
    if (report.idle_seconds)
        metrics.last_work.raise(whose,
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
        if (age) metrics.stopped_report.raise(whose, *age);
        if (is_stopped) metrics.stopped.add(whose, 1);
        if (outcome.by_driver) {
            const auto state = report ? state_label(*report) : std::string_view("unknown");
            metrics.processes.add(whose.with("engine", "driver").with("state", state), 1);
            if (report) metrics.host_held.add(whose, report->host_bytes);
        } else if (report) {
            add_process(metrics, whose, *report, now);
            // A process each: a sum that falls when one ends would be a counter that begins anew.
            metrics.given_back.add(whose.with("pid", std::to_string(outcome.process.pid)),
                                   report->asleep_byte_seconds);
        } else if (!is_stopped) {
            metrics.unanswered.add(whose, 1);
        }
    }
    for (const auto& gpu : gpus) {
        metrics.gpu_total.add(Labels().with("gpu", gpu.uuid), gpu.total);
        metrics.gpu_free.add(Labels().with("gpu", gpu.uuid), gpu.free);
    }
    metrics.build.add(Labels().with("version", GPU_SLEEP_VERSION), 1);
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
