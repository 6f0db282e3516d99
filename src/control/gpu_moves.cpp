// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Completing moves to a list in which every GPU has one place.

#include "control/gpu_moves.hpp"

namespace gpu_sleep::control {
namespace {

using driver::Gpu;

/// The place of the GPU of this number or uuid in `gpus`. Errors: invalid_argument.
Result<std::size_t> place_in(const std::vector<Gpu>& gpus, const std::string& word) {
    const auto is_meant = [&](const Gpu& gpu) {
        return model::is_number(word) ? std::to_string(gpu.index) == word : gpu.uuid == word;
    };
    const auto found = std::ranges::find_if(gpus, is_meant);
    if (found != gpus.end()) return static_cast<std::size_t>(found - gpus.begin());
    std::string all;
    for (const auto& gpu : gpus)
        all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", gpu.index, gpu.uuid);
    return make_error(ErrorCode::invalid_argument, "there is no GPU {}; this machine has: {}", word, all);
}

/// For each GPU, which takes its place; nothing where nobody has said.
using Places = std::vector<std::optional<std::size_t>>;

/// Errors: invalid_argument.
Result<Places> places_of(const std::vector<GpuPair>& moves, const std::vector<Gpu>& gpus) {
    Places places(gpus.size());
    std::vector<bool> is_taken(gpus.size());
    for (const auto& move : moves) {
        const auto from = GPU_SLEEP_TRY(place_in(gpus, move.from));
        const auto to = GPU_SLEEP_TRY(place_in(gpus, move.to));
        if (places[from] || is_taken[to])
            return make_error(ErrorCode::invalid_argument, "GPU {} is named twice on the same side",
                              gpus[places[from] ? from : to].index);
        const auto& source = gpus[from];
        const auto& target = gpus[to];
        if (source.name != target.name || source.total != target.total)
            return make_error(ErrorCode::invalid_argument,
                              "the driver restores on a GPU of the same kind: GPU {} is {} with {}, GPU {} "
                              "is {} with {}",
                              source.index, source.name, format_bytes(source.total), target.index,
                              target.name, format_bytes(target.total));
        places[from] = to;
        is_taken[to] = true;
    }
    return places;
}

/// Gives each GPU that has no place the one that is left: its own, or the one that the chain of moves which
/// ends there has begun at.
void complete(Places& places) {
    for (std::size_t gpu = 0; gpu < places.size(); ++gpu) {
        if (places[gpu]) continue;
        std::size_t place = gpu;
        const auto comes_from = [&](std::size_t to) { return std::ranges::find(places, std::optional(to)); };
        for (auto from = comes_from(place); from != places.end(); from = comes_from(place))
            place = static_cast<std::size_t>(from - places.begin());
        places[gpu] = place;
    }
}

/// Whether what was typed goes with what the process has. Errors: invalid_argument.
Result<void> check_needs(const Places& typed, const Places& places, const std::vector<Gpu>& gpus,
                         const client::BytesByGpu& needs) {
    if (needs.empty()) return {};
    const auto is_needed = [&](std::size_t gpu) { return needs.contains(gpus[gpu].uuid); };
    for (std::size_t i = 0; i < gpus.size(); ++i)
        if (typed[i] && !is_needed(i))
            return make_error(ErrorCode::invalid_argument, "it had nothing on GPU {}", gpus[i].index);
    for (std::size_t i = 0; i < gpus.size(); ++i)
        if (!typed[i] && is_needed(i) && places[i] != i)
            return make_error(ErrorCode::invalid_argument,
                              "it also had memory on GPU {}: say where that goes, too", gpus[i].index);
    return {};
}

} // namespace

const Gpu* find_gpu(const std::vector<Gpu>& gpus, const std::string& uuid) noexcept {
    const auto found = std::ranges::find(gpus, uuid, &Gpu::uuid);
    return found == gpus.end() ? nullptr : &*found;
}

Result<GpuPair> parse_gpu_move(const std::string& text) {
    const auto equals = text.find('=');
    const bool is_whole = equals != std::string::npos && equals != 0 && equals + 1 != text.size() &&
                          text.find('=', equals + 1) == std::string::npos;
    if (is_whole) return GpuPair{text.substr(0, equals), text.substr(equals + 1)};
    return make_error(ErrorCode::invalid_argument,
                      "'{}' is not FROM=TO, two GPUs by their numbers or uuids, such as 0=1", text);
}

Result<std::vector<GpuPair>> plan_gpu_moves(const std::vector<GpuPair>& moves, const std::vector<Gpu>& gpus,
                                            const client::BytesByGpu& needs) {
    const auto typed = GPU_SLEEP_TRY(places_of(moves, gpus));
    auto places = typed;
    complete(places);
    GPU_SLEEP_TRY(check_needs(typed, places, gpus, needs));
    std::vector<GpuPair> pairs;
    for (std::size_t i = 0; i < gpus.size(); ++i) pairs.push_back({gpus[i].uuid, gpus[*places[i]].uuid});
    return pairs;
}

client::BytesByGpu moved(const client::BytesByGpu& needs, const std::vector<GpuPair>& pairs) {
    client::BytesByGpu there;
    for (const auto& [uuid, bytes] : needs) there[place_of(uuid, pairs)] = bytes;
    return there;
}

} // namespace gpu_sleep::control
