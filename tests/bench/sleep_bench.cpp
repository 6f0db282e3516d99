// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How long a server takes to fall asleep and to wake, from the start of the command to its exit, and what
// that costs in memory. Every time also stands against what the link allows for the bytes kept, measured in
// the same run.

#include "bench/figures.hpp"
#include "bench/sleep_server.hpp"
#include "bench/subject.hpp"

#include <CLI/CLI.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

using namespace gpu_sleep;
using bench::Figure;
using bench::Subject;
using bench::Timed;

constexpr int k_offload = 0; // as in gpu_sleep.h
constexpr int k_discard = 2;

struct Options {
    double scale = 0; ///< of all sizes; 0: whole on a real GPU, a hundredth on the simulated one
    unsigned repeats = 5;
    unsigned first_sleeps = 3; ///< processes that fall asleep for the first time
    unsigned pause_ms = 500;
    std::string json;
    bool check = false;
    bool serve = false;
};

/// Llama-3-8B in bf16: for each layer q, k with v, o, gate, up and down; the embedding, and the output.
std::vector<Bytes> large_model() {
    constexpr Bytes k_hidden = 4096 * 2;
    std::vector<Bytes> sizes{128'256 * k_hidden, 128'256 * k_hidden};
    for (int layer = 0; layer < 32; ++layer)
        for (const Bytes rows : {4096, 2048, 4096, 14'336, 14'336, 14'336}) sizes.push_back(rows * k_hidden);
    return sizes;
}

std::vector<Bytes> cache() {
    return std::vector<Bytes>(32, 768 * k_mib);
}

std::vector<Bytes> hundred_gib() {
    return std::vector<Bytes>(400, 256 * k_mib);
}

std::vector<Bytes> written() {
    return std::vector<Bytes>(1, k_gib);
}

/// As JAX does by itself: three quarters of the GPU, hardly any of it used.
std::vector<Bytes> reserved() {
    return std::vector<Bytes>(13, 8 * k_gib);
}

std::vector<Bytes> small_model() {
    return std::vector<Bytes>(100, 12'000'000);
}

std::vector<Bytes> many_ranges() {
    return std::vector<Bytes>(300, 4 * k_mib);
}

std::vector<double> seconds_of(const std::vector<Timed>& operations) {
    std::vector<double> seconds;
    for (const auto& operation : operations) seconds.push_back(operation.seconds);
    return seconds;
}

/// Takes host memory and gives it back: a virtual machine may have to grow for it, which is not what is
/// measured.
void warm_host(Bytes bytes) {
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory != MAP_FAILED) ::munmap(memory, bytes);
}

/// One run over all workloads.
class Run {
public:
    Run(const Options& options, double scale, bench::Link link, bool judged, std::string setting)
        : options_(options), scale_(scale), link_(link), judged_(judged),
          figures_("sleep_bench", std::move(setting)) {}

    [[nodiscard]] Result<bench::Figures> all() {
        warm_host(total(large_model()));
        figures_.note("host memory was touched and given back beforehand, as much of it as is kept");
        figures_.add({"link to host", "GB/s", {link_.to_host / 1e9}, {}, {}});
        figures_.add({"link to device", "GB/s", {link_.to_device / 1e9}, {}, {}});
        GPU_SLEEP_TRY(measure_large_model());
        GPU_SLEEP_TRY(measure_level_2());
        GPU_SLEEP_TRY(measure_reserved());
        GPU_SLEEP_TRY(measure_hundred_gib());
        GPU_SLEEP_TRY(measure_small_model());
        GPU_SLEEP_TRY(measure_footprint());
        return std::move(figures_);
    }

private:
    [[nodiscard]] Result<void> measure_large_model();
    /// Sleeps for the first time in a process, and what that takes of the host. Leaves it asleep.
    [[nodiscard]] Result<void> sleep_first(Subject& subject, std::vector<Timed>& slept);
    [[nodiscard]] Result<void> measure_changes(Subject& subject);
    [[nodiscard]] Result<void> measure_tags(Subject& subject);
    [[nodiscard]] Result<void> measure_reserved();
    [[nodiscard]] Result<void> measure_hundred_gib();
    [[nodiscard]] std::optional<double> wake_target(const std::vector<Timed>& woken) const;
    [[nodiscard]] Result<void> measure_level_2();
    [[nodiscard]] Result<void> measure_small_model();
    [[nodiscard]] Result<void> measure_footprint();
    /// How much a process grows by holding ranges, and by sleeping once if the agent holds them.
    [[nodiscard]] Result<double> growth(bool with_agent);

    [[nodiscard]] std::vector<Bytes> scaled(std::vector<Bytes> sizes) const {
        for (auto& bytes : sizes)
            bytes = std::max<Bytes>(4 * k_kib, static_cast<Bytes>(static_cast<double>(bytes) * scale_));
        return sizes;
    }
    [[nodiscard]] Bytes total(const std::vector<Bytes>& sizes) const {
        Bytes sum = 0;
        for (const auto bytes : scaled(sizes)) sum += bytes;
        return sum;
    }
    [[nodiscard]] Result<void> sleep(Subject& subject, std::vector<Timed>& done,
                                     std::vector<std::string> arguments = {}) const {
        pause();
        return keep(subject.sleep(std::move(arguments)), done);
    }
    [[nodiscard]] Result<void> wake(Subject& subject, std::vector<Timed>& done,
                                    std::vector<std::string> arguments = {}) const {
        pause();
        return keep(subject.wake(std::move(arguments)), done);
    }
    static Result<void> keep(Result<Timed> timed, std::vector<Timed>& done) {
        if (!timed) return std::move(timed).error();
        done.push_back(*timed);
        return {};
    }
    /// The driver scrubs released memory in the background, which takes bandwidth from the copies.
    void pause() const { std::this_thread::sleep_for(Milliseconds(options_.pause_ms)); }

    /// A target counts for the whole work on a real device only.
    [[nodiscard]] std::optional<double> target(double value) const {
        return judged_ ? std::optional(value) : std::nullopt;
    }
    void add_times(std::string name, const std::vector<Timed>& done, std::optional<double> at_most,
                   double rate = 0) {
        std::optional<double> limit;
        if (rate != 0) limit = static_cast<double>(done.front().kept) / rate;
        figures_.add({std::move(name), "s", seconds_of(done), at_most, limit});
    }

    const Options& options_;
    double scale_;
    bench::Link link_;
    bool judged_;
    bench::Figures figures_;
    std::vector<double> host_growth_; ///< of the process while asleep, over the bytes kept
    std::vector<double> host_held_;   ///< by the agent as it says, over the bytes kept
    std::vector<double> gpu_left_;    ///< GPU memory in use while asleep, in MiB
};

Result<void> Run::sleep_first(Subject& subject, std::vector<Timed>& slept) {
    const auto awake = subject.resident_bytes();
    if (!awake) return awake.error();
    GPU_SLEEP_TRY(sleep(subject, slept));
    const auto asleep = subject.resident_bytes();
    if (!asleep) return asleep.error();
    const auto gpu = subject.gpu_memory();
    if (!gpu) return gpu.error();
    const auto kept = static_cast<double>(slept.back().kept);
    host_growth_.push_back((static_cast<double>(*asleep) - static_cast<double>(*awake)) / kept);
    host_held_.push_back(static_cast<double>(slept.back().host_bytes) / kept);
    gpu_left_.push_back(static_cast<double>(gpu->total - gpu->free) / k_mib);
    return {};
}

Result<void> Run::measure_large_model() {
    std::vector<Timed> first;
    std::vector<Timed> later;
    std::vector<Timed> woken;
    for (unsigned i = 0; i < options_.first_sleeps; ++i) {
        auto subject = Subject::start();
        if (!subject) return std::move(subject).error();
        GPU_SLEEP_TRY(subject->hold("weights", k_offload, scaled(large_model())));
        GPU_SLEEP_TRY(subject->hold("kv_cache", k_discard, scaled(cache())));
        GPU_SLEEP_TRY(sleep_first(*subject, first));
        GPU_SLEEP_TRY(wake(*subject, woken));
        if (i + 1 < options_.first_sleeps) continue;
        for (unsigned j = 0; j < options_.repeats; ++j) {
            GPU_SLEEP_TRY(sleep(*subject, later));
            GPU_SLEEP_TRY(wake(*subject, woken));
        }
        add_times("8B model: first sleep", first, target(0.55), link_.to_host);
        add_times("8B model: later sleep, unchanged", later, target(0.04), link_.to_host);
        add_times("8B model: wake", woken, wake_target(woken), link_.to_device);
        GPU_SLEEP_TRY(measure_changes(*subject));
        GPU_SLEEP_TRY(measure_tags(*subject));
    }
    figures_.add({"8B model: host memory asleep, of bytes kept", "x", host_growth_, target(1.05), {}});
    figures_.add({"8B model: held by the agent, of bytes kept", "x", host_held_, target(1.05), {}});
    figures_.add({"8B model: GPU memory in use asleep", "MiB", gpu_left_, {}, {}});
    return {};
}

Result<void> Run::measure_changes(Subject& subject) {
    struct Case {
        const char* name;
        Bytes nth; ///< block that changes
        double at_most;
        std::vector<std::string> arguments;
    };
    const std::vector<Case> cases{{"8B model: later sleep, 1 % of blocks changed", 100, 0.06, {}},
                                  {"8B model: later sleep, all changed", 1, 0.33, {}},
                                  {"8B model: later sleep, --copy-all", 0, 0.33, {"--copy-all"}}};
    for (const auto& each : cases) {
        std::vector<Timed> slept;
        std::vector<Timed> woken;
        for (unsigned i = 0; i < options_.repeats; ++i) {
            if (each.nth != 0) GPU_SLEEP_TRY(subject.change(each.nth));
            GPU_SLEEP_TRY(sleep(subject, slept, each.arguments));
            GPU_SLEEP_TRY(wake(subject, woken));
        }
        add_times(each.name, slept, target(each.at_most), link_.to_host);
    }
    return {};
}

Result<void> Run::measure_reserved() {
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    const auto memory = subject->gpu_memory();
    if (!memory) return memory.error();
    if (memory->free < total(reserved()) + total(written())) {
        figures_.note("memory that is reserved and hardly used was left out: too little GPU memory is free");
        return {};
    }
    GPU_SLEEP_TRY(subject->hold("default", k_offload, scaled(written())));
    GPU_SLEEP_TRY(subject->hold_zeros("default", scaled(reserved())));
    std::vector<Timed> first;
    std::vector<Timed> later;
    std::vector<Timed> woken;
    GPU_SLEEP_TRY(sleep(*subject, first));
    GPU_SLEEP_TRY(wake(*subject, woken));
    for (unsigned i = 0; i < options_.repeats; ++i) {
        GPU_SLEEP_TRY(sleep(*subject, later));
        GPU_SLEEP_TRY(wake(*subject, woken));
    }
    add_times("105 GiB, 1 of them written: first sleep", first, target(0.20));
    add_times("105 GiB, 1 of them written: later sleep", later, target(0.08));
    add_times("105 GiB, 1 of them written: wake", woken, target(0.15));
    return {};
}

Result<void> Run::measure_hundred_gib() {
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    const auto memory = subject->gpu_memory();
    if (!memory) return memory.error();
    const auto room =
        static_cast<Bytes>(::sysconf(_SC_PHYS_PAGES)) * static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
    if (memory->free < total(hundred_gib()) || room < 2 * total(hundred_gib())) {
        figures_.note("100 GiB at level 1 were left out: too little memory, of the GPU or of the host");
        return {};
    }
    warm_host(total(hundred_gib()));
    GPU_SLEEP_TRY(subject->hold("weights", k_offload, scaled(hundred_gib())));
    std::vector<Timed> first;
    std::vector<Timed> later;
    std::vector<Timed> woken;
    GPU_SLEEP_TRY(sleep(*subject, first));
    GPU_SLEEP_TRY(wake(*subject, woken));
    for (unsigned i = 0; i < 2; ++i) {
        GPU_SLEEP_TRY(sleep(*subject, later));
        GPU_SLEEP_TRY(wake(*subject, woken));
    }
    add_times("100 GiB: first sleep", first, target(3.2), link_.to_host);
    add_times("100 GiB: later sleep, unchanged", later, target(0.10), link_.to_host);
    add_times("100 GiB: wake", woken, wake_target(woken), link_.to_device);
    return {};
}

std::optional<double> Run::wake_target(const std::vector<Timed>& woken) const {
    return target(1.05 * static_cast<double>(woken.front().kept) / link_.to_device);
}

Result<void> Run::measure_tags(Subject& subject) {
    std::vector<Timed> slept;
    std::vector<Timed> weights;
    std::vector<Timed> cache_alone;
    for (unsigned i = 0; i < options_.repeats; ++i) {
        GPU_SLEEP_TRY(sleep(subject, slept));
        GPU_SLEEP_TRY(wake(subject, weights, {"--tags", "weights"}));
        GPU_SLEEP_TRY(wake(subject, cache_alone, {"--tags", "kv_cache"}));
    }
    add_times("8B model: wake of its weights", weights, {}, link_.to_device);
    add_times("8B model: wake of its cache", cache_alone, {});
    return {};
}

Result<void> Run::measure_level_2() {
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    const auto memory = subject->gpu_memory();
    if (!memory) return memory.error();
    if (memory->free < total(hundred_gib())) {
        figures_.note(fmt::format("level 2 was left out: it needs {} of GPU memory, and {} are free",
                                  format_bytes(total(hundred_gib())), format_bytes(memory->free)));
        return {};
    }
    GPU_SLEEP_TRY(subject->hold("weights", k_offload, scaled(hundred_gib())));
    std::vector<Timed> slept;
    std::vector<Timed> woken;
    for (unsigned i = 0; i < options_.repeats; ++i) {
        GPU_SLEEP_TRY(sleep(*subject, slept, {"--level", "2"}));
        GPU_SLEEP_TRY(wake(*subject, woken));
    }
    add_times("100 GiB: sleep at level 2", slept, target(0.08));
    add_times("100 GiB: wake from level 2, zeroed", woken, {});
    return {};
}

Result<void> Run::measure_small_model() {
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    GPU_SLEEP_TRY(subject->hold("weights", k_offload, scaled(small_model())));
    std::vector<Timed> slept;
    std::vector<Timed> woken;
    for (unsigned i = 0; i < options_.repeats; ++i) {
        GPU_SLEEP_TRY(sleep(*subject, slept));
        GPU_SLEEP_TRY(wake(*subject, woken));
    }
    const auto later = std::vector<Timed>(slept.begin() + 1, slept.end());
    add_times("1.2 GB model: first sleep", {slept.front()}, target(0.10), link_.to_host);
    if (!later.empty()) add_times("1.2 GB model: later sleep, unchanged", later, target(0.02), link_.to_host);
    add_times("1.2 GB model: wake", woken, target(0.03), link_.to_device);
    return {};
}

Result<double> Run::growth(bool with_agent) {
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    if (const auto ready = subject->device(); !ready) return ready.error();
    const auto before = subject->resident_bytes();
    if (!before) return before.error();
    if (with_agent) {
        std::vector<Timed> done;
        GPU_SLEEP_TRY(subject->hold("weights", k_offload, scaled(many_ranges())));
        GPU_SLEEP_TRY(sleep(*subject, done));
        GPU_SLEEP_TRY(wake(*subject, done));
        GPU_SLEEP_TRY(keep(subject->sleep({"--release-retained"}), done));
        pause(); // contents are given back after the answer
    } else {
        GPU_SLEEP_TRY(subject->hold_plainly(scaled(many_ranges())));
    }
    const auto after = subject->resident_bytes();
    if (!after) return after.error();
    return static_cast<double>(*after) - static_cast<double>(*before);
}

Result<void> Run::measure_footprint() {
    std::vector<double> own;
    for (unsigned i = 0; i < options_.first_sleeps; ++i) {
        const auto with_agent = growth(true);
        if (!with_agent) return with_agent.error();
        const auto without = growth(false);
        if (!without) return without.error();
        own.push_back((*with_agent - *without) / k_mib);
    }
    figures_.add({"300 ranges: the agent's own memory awake", "MiB", own, target(20), {}});
    return {};
}

Result<bench::Figures> run(const Options& options) {
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    const auto device = subject->device();
    if (!device) return device.error();
    const auto link = subject->link();
    if (!link) return link.error();
    const bool simulated = device->starts_with("simulated ");
    const auto scale = options.scale != 0 ? options.scale : simulated ? 0.01 : 1;
    const auto name = device->substr(device->find(' ') + 1);
    auto setting =
        fmt::format("{} driver, {}, sizes times {}", simulated ? "simulated" : "real", name, scale);
    static_cast<void>(Subject(*std::move(subject))); // its context would count as memory in use
    return Run(options, scale, *link, !simulated && scale == 1, std::move(setting)).all();
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app{"Measures sleeping and waking, from the start of the command to its exit."};
    app.add_option("--scale", options.scale, "times all sizes; no target counts then")
        ->check(CLI::PositiveNumber);
    app.add_option("--repeats", options.repeats, "operations of a kind in one process")
        ->check(CLI::Range(1, 1000));
    app.add_option("--first-sleeps", options.first_sleeps, "processes that sleep for the first time")
        ->check(CLI::Range(1, 1000));
    app.add_option("--pause", options.pause_ms, "before each operation, in milliseconds");
    app.add_option("--json", options.json, "file for the figures");
    app.add_flag("--check", options.check, "fail when a target is missed");
    app.add_flag("--serve", options.serve, "be the process that is put to sleep; of no use by hand");
    CLI11_PARSE(app, argc, argv);
    if (options.serve) return bench::serve();
    // The simulated driver's pattern in fresh memory needs a second view of it, which would count as the
    // process's.
    ::setenv("GPU_SLEEP_SIM_POISON", "0", 0);
    const auto figures = run(options);
    if (figures) return bench::finish(*figures, options.json, options.check);
    std::fprintf(stderr, "sleep_bench: %s\n", figures.error().message.c_str());
    return EXIT_FAILURE;
}
