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

void Vaults::forget(const std::vector<ledger::KeptExtent>& extents) {
    for (const auto& extent : extents) {
        const auto vault = vaults_.find(extent.vault);
        vault->second.live -= extent.span.bytes;
        if (vault->second.live != 0) continue;
        retired_.push_back(std::move(vault->second));
        vaults_.erase(vault);
    }
}

Bytes Vaults::host_bytes() const noexcept {
    Bytes sum = 0;
    for (const auto& [id, vault] : vaults_) sum += vault.arena->bytes();
    return sum;
}

} // namespace gpu_sleep::sleep
