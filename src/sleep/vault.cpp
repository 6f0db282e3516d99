// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeping count of what each vault is needed for.

#include "sleep/vault.hpp"

namespace gpu_sleep::sleep {

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
    for (const auto& extent : extents) {
        const auto vault = vaults_.find(extent.vault);
        vault->second.live -= extent.span.bytes;
        if (vault->second.live != 0) continue;
        let_go(vault->second, files);
        retired_.insert(vaults_.extract(vault)); // which takes no memory
    }
}

Bytes Vaults::host_bytes() const noexcept {
    Bytes sum = 0;
    for (const auto& [id, vault] : vaults_) sum += vault.arena ? vault.arena->bytes() : 0;
    return sum;
}

Bytes Vaults::file_bytes() const noexcept {
    Bytes sum = 0;
    for (const auto& [id, vault] : vaults_) sum += vault.snapshot ? vault.snapshot->header.file_bytes : 0;
    return sum;
}

void Vaults::remove_files() noexcept {
    for (auto& [id, vault] : vaults_) let_go(vault, Files::as_asked);
}

} // namespace gpu_sleep::sleep
