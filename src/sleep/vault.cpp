// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeping count of what each vault is needed for.

#include "sleep/vault.hpp"

#include <algorithm>
#include <utility>

namespace gpu_sleep::sleep {
namespace {

/// Calls `use(number, bytes)` for each piece that the extent lies in.
template <class Use>
void for_each_piece(const ledger::KeptExtent& extent, Use&& use) {
    constexpr auto k_piece = store::HostArena::k_piece_bytes;
    const auto end = extent.vault_offset + extent.span.bytes;
    for (auto at = extent.vault_offset; at < end;) {
        const auto piece_end = std::min(end, (at / k_piece + 1) * k_piece);
        use(static_cast<std::size_t>(at / k_piece), piece_end - at);
        at = piece_end;
    }
}

bool is_any_worth_shrinking(const Vault& vault) noexcept {
    return std::any_of(vault.pieces.begin(), vault.pieces.end(),
                       [](const PieceUse& use) { return use.is_worth_shrinking(); });
}

} // namespace

void Vault::note_live(const ledger::KeptExtent& extent) {
    for (auto i = pieces.size(); i < arena->piece_count(); ++i) pieces.push_back({arena->piece(i).size()});
    for_each_piece(extent, [this](std::size_t piece, Bytes bytes) { pieces[piece].live += bytes; });
}

bool Vault::note_dead(const ledger::KeptExtent& extent) noexcept {
    bool has_more = false;
    for_each_piece(extent, [&](std::size_t piece, Bytes bytes) {
        auto& use = pieces[piece];
        const bool was_worth_it = use.is_worth_shrinking();
        use.live -= bytes;
        use.dead += bytes;
        has_more |= !was_worth_it && use.is_worth_shrinking();
    });
    return has_more;
}

Bytes Vault::host_bytes() const noexcept {
    Bytes sum = 0;
    for (const auto& use : pieces) sum += use.held;
    return sum;
}

std::uint64_t Vaults::add(Vault vault) {
    const auto id = next_id_++;
    vaults_.emplace(id, std::move(vault));
    return id;
}

void Vaults::let_go(Vault& vault, Files files) noexcept {
    if (!vault.snapshot) return;
    if (vault.keeps_file && files == Files::as_asked)
        vault.snapshot->file.let_stay();
    else
        vault.snapshot->file.unlink();
}

void Vaults::forget(const std::vector<ledger::KeptExtent>& extents, Files files) noexcept {
    bool is_wasted = false;
    for (const auto& extent : extents) {
        const auto found = vaults_.find(extent.vault);
        auto& vault = found->second;
        if (vault.arena) is_wasted |= vault.note_dead(extent);
        vault.live -= extent.span.bytes;
        if (vault.live != 0) continue;
        let_go(vault, files);
        retired_.insert(vaults_.extract(found)); // which takes no memory
        is_wasted = true;
    }
    if (is_wasted) told_();
}

std::optional<Waste> Vaults::find_waste(const ledger::Ledger& ledger) {
    const auto found = std::find_if(vaults_.begin(), vaults_.end(),
                                    [](const auto& entry) { return is_any_worth_shrinking(entry.second); });
    if (found == vaults_.end()) return std::nullopt;
    const auto id = found->first;
    auto& vault = found->second;
    const auto use = std::find_if(vault.pieces.begin(), vault.pieces.end(),
                                  [](const PieceUse& each) { return each.is_worth_shrinking(); });
    Waste waste{id, vault.arena.get(), static_cast<std::size_t>(use - vault.pieces.begin()), {}};
    for (const auto& [address, backing] : ledger.backings()) {
        for (const auto& extent : backing.kept) {
            if (extent.vault != id) continue;
            for_each_piece(extent, [&](std::size_t piece, Bytes /*bytes*/) {
                if (piece == waste.piece)
                    waste.needed.emplace_back(vault.arena->data() + extent.vault_offset, extent.span.bytes);
            });
        }
    }
    std::sort(waste.needed.begin(), waste.needed.end(),
              [](const auto& a, const auto& b) { return a.data() < b.data(); });
    use->dead = 0; // last: it is tried once, whatever comes of it
    return waste;
}

void Vaults::note_shrunk(const Waste& waste, Bytes given_back) noexcept {
    for (auto* const vaults : {&vaults_, &retired_}) // the rest may have died meanwhile
        if (const auto found = vaults->find(waste.vault); found != vaults->end())
            found->second.pieces[waste.piece].held -= given_back;
}

bool Vaults::has_waste() const noexcept {
    return !retired_.empty() || std::any_of(vaults_.begin(), vaults_.end(), [](const auto& entry) {
        return is_any_worth_shrinking(entry.second);
    });
}

Bytes Vaults::host_bytes_of(const ByNumber& vaults) noexcept {
    Bytes sum = 0;
    for (const auto& [id, vault] : vaults) sum += vault.host_bytes();
    return sum;
}

Bytes Vaults::host_bytes() const noexcept {
    return host_bytes_of(vaults_);
}

Bytes Vaults::retired_bytes() const noexcept {
    return host_bytes_of(retired_);
}

Bytes Vaults::file_bytes() const noexcept {
    Bytes sum = 0;
    for (const auto& [id, vault] : vaults_) sum += vault.snapshot ? vault.snapshot->header.file_bytes : 0;
    return sum;
}

std::vector<std::filesystem::path> Vaults::files_out_of_reach() const {
    std::vector<std::filesystem::path> files;
    for (const auto& [id, vault] : retired_)
        if (vault.snapshot && vault.snapshot->file.is_out_of_reach())
            files.push_back(vault.snapshot->file.path());
    return files;
}

void Vaults::remove_files() noexcept {
    for (auto& [id, vault] : vaults_) let_go(vault, Files::as_asked);
}

} // namespace gpu_sleep::sleep
