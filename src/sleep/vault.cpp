// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeping count of what each vault is needed for.

#include "sleep/vault.hpp"

#include "base/log.hpp"

namespace gpu_sleep::sleep {

std::uint64_t Vaults::add(Vault vault) {
    const auto id = next_id_++;
    vaults_.emplace(id, std::move(vault));
    return id;
}

void Vaults::forget(const std::vector<ledger::KeptExtent>& extents) {
    for (const auto& extent : extents) {
        const auto vault = vaults_.find(extent.vault);
        vault->second.live -= extent.span.bytes;
        if (vault->second.live != 0) continue;
        if (vault->second.snapshot && vault->second.keeps_file)
            if (auto kept = vault->second.snapshot->file.keep(); !kept)
                log::warning("a snapshot could not be kept: {}", kept.error().message);
        retired_.push_back(std::move(vault->second));
        vaults_.erase(vault);
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
    for (auto& [id, vault] : vaults_) {
        if (vault.snapshot && vault.keeps_file) static_cast<void>(vault.snapshot->file.keep());
        vault.snapshot.reset();
    }
}

} // namespace gpu_sleep::sleep
