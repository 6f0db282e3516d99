// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Handles given to programs. A number is never used twice, so a stale handle is an error and never a crash.

#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpu_sleep::sim {

/// Objects by handle. Guarded by the driver's lock.
template <class Handle, class T>
class HandleTable {
public:
    /// `kind` sets the handles of this table apart from those of all others.
    explicit HandleTable(std::uint64_t kind) : next_((kind << 40) + k_step) {}

    Handle insert(std::shared_ptr<T> object) {
        const auto number = std::exchange(next_, next_ + k_step);
        objects_.emplace(number, std::move(object));
        return to_handle(number);
    }
    /// Gives `object` a handle that the caller chose, outside those of insert().
    void put(Handle handle, std::shared_ptr<T> object) {
        objects_.emplace(to_number(handle), std::move(object));
    }
    /// The object of `handle`, or null.
    [[nodiscard]] std::shared_ptr<T> find(Handle handle) const {
        const auto found = objects_.find(to_number(handle));
        return found == objects_.end() ? nullptr : found->second;
    }
    /// Takes the object out; null if there is none.
    std::shared_ptr<T> remove(Handle handle) {
        auto node = objects_.extract(to_number(handle));
        return node ? std::move(node.mapped()) : nullptr;
    }
    /// Takes out what `matches`.
    template <class Predicate>
    std::vector<std::shared_ptr<T>> remove_if(Predicate matches) {
        std::vector<std::shared_ptr<T>> removed;
        for (auto it = objects_.begin(); it != objects_.end();) {
            if (!matches(*it->second)) {
                ++it;
                continue;
            }
            removed.push_back(std::move(it->second));
            it = objects_.erase(it);
        }
        return removed;
    }
    template <class Visitor>
    void for_each(Visitor visit) const {
        for (const auto& [number, object] : objects_) visit(to_handle(number), *object);
    }
    [[nodiscard]] std::size_t size() const noexcept { return objects_.size(); }

private:
    static constexpr std::uint64_t k_step = 16;

    static Handle to_handle(std::uint64_t number) noexcept {
        if constexpr (std::is_pointer_v<Handle>)
            return reinterpret_cast<Handle>(number);
        else
            return static_cast<Handle>(number);
    }
    static std::uint64_t to_number(Handle handle) noexcept {
        if constexpr (std::is_pointer_v<Handle>)
            return reinterpret_cast<std::uint64_t>(handle);
        else
            return static_cast<std::uint64_t>(handle);
    }

    std::uint64_t next_;
    std::unordered_map<std::uint64_t, std::shared_ptr<T>> objects_;
};

} // namespace gpu_sleep::sim
