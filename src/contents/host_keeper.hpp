// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in pinned host memory: a batch is an arena, in which they lie as they did on the device.

#pragma once

#include "contents/keeper.hpp"
#include "store/host_arena.hpp"

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace gpu_sleep::contents {

/// What one piece of an arena is used for.
struct PieceUse {
    Bytes held = 0; ///< memory that it takes
    Bytes live = 0; ///< of contents that are still needed
    Bytes dead = 0; ///< of contents that died since it was last shrunk

    /// Once nothing in it lives, or what died is a quarter of what it holds. So a quarter of the memory is
    /// wasted at most, and what is left over of huge pages; and however small the parts are that die, one
    /// after another, a piece is shrunk some ten times until it is empty, at about 1 ms each,
    /// measured on one H200.
    [[nodiscard]] bool is_worth_shrinking() const noexcept {
        constexpr Bytes k_min_share = 4;
        return dead > 0 && (live == 0 || dead * k_min_share >= held);
    }
};

class HostBatch final : public Batch {
public:
    /// `stock`, which may be null and lives until the batch has begun, has memory that is ready: the batch
    /// takes what it needs of it.
    HostBatch(Keeper& keeper, store::Pinner* pinner, HostBatch* stock = nullptr) noexcept
        : Batch(keeper), pinner_(pinner), stock_(stock) {}

    /// What it takes, unless blocks turn out to be zero.
    [[nodiscard]] Result<Bytes> needs() const override { return bytes_; }
    [[nodiscard]] Result<void> begin() override;

    [[nodiscard]] const std::byte* memory(Span span, std::vector<std::byte>& buffer) const override;
    [[nodiscard]] Result<void> read(Span span, std::byte* to) const override;
    [[nodiscard]] Bytes held() const noexcept override;
    [[nodiscard]] bool retain() noexcept override { return true; }
    [[nodiscard]] bool forget(Span span) noexcept override;
    [[nodiscard]] std::optional<std::size_t> take_waste() noexcept override;
    [[nodiscard]] bool has_waste() const noexcept override;
    [[nodiscard]] Span part(std::size_t index) const noexcept override;
    [[nodiscard]] Bytes shrink(std::size_t index, std::span<const Span> needed) override;
    void note_shrunk(std::size_t index, Bytes given_back) noexcept override {
        pieces_[index].held -= given_back;
    }
    [[nodiscard]] bool give_back_some() noexcept override { return arena_ && arena_->unpin_next(); }
    void protect() noexcept override;
    [[nodiscard]] Result<void> unprotect() noexcept override;
    [[nodiscard]] bool has_unpinned() const noexcept override { return arena_ && arena_->has_untried(); }
    [[nodiscard]] bool pin_some() noexcept override;
    [[nodiscard]] bool unpin() noexcept override { return !arena_ || arena_->unpin_all(); }

    /// Takes the last `count` pieces of `stock`, which is ready, without contents: it is a stock then itself.
    /// May throw for want of memory: then nothing has changed.
    void absorb(store::HostArena& stock, std::size_t count);

    /// The arena, once the batch has begun.
    [[nodiscard]] store::HostArena& arena() const noexcept { return *arena_; }

private:
    friend class HostKeeper;
    [[nodiscard]] Bytes reserve(Bytes bytes) override;

    store::Pinner* pinner_;
    HostBatch* stock_;
    Bytes bytes_ = 0; ///< of the arena
    std::unique_ptr<store::HostArena> arena_;
    std::vector<PieceUse> pieces_; ///< of the arena
};

class HostKeeper final : public Keeper {
public:
    /// `pinner`, which may be null, outlives it.
    explicit HostKeeper(store::Pinner* pinner) noexcept : pinner_(pinner) {}

    [[nodiscard]] model::Store store() const noexcept override { return model::Store::host; }
    [[nodiscard]] std::string_view where() const noexcept override { return "host memory"; }
    [[nodiscard]] bool is_mendable() const noexcept override { return false; }
    [[nodiscard]] bool gives_at_once() const noexcept override { return true; }
    [[nodiscard]] bool may_replace() const noexcept override { return true; }
    [[nodiscard]] Result<void> open(const model::Choice& choice, SaveOptions& options,
                                    std::vector<std::string>& notes) override;
    [[nodiscard]] std::unique_ptr<Batch> make_batch(Label label, const SaveOptions& options) override;
    void note_needs(Bytes needed, const Rehearsal& rehearsal, model::Report& report) const override;
    [[nodiscard]] Result<void> take(Transfer& transfer, std::span<Batch* const> batches) override;
    [[nodiscard]] Result<void> replace(Transfer& transfer, std::span<const Move> blocks) override;
    [[nodiscard]] Result<void> give(Transfer& transfer, std::span<const Move> blocks,
                                    Failures& failures) override;
    [[nodiscard]] Result<void> take_over(Handover& handover, Batch& batch,
                                         std::span<const Carried> parts) override;

    /// Host memory that was made ready for the device, and that no contents have taken yet.
    [[nodiscard]] Bytes prepared(int device) const noexcept;
    [[nodiscard]] Bytes prepared() const noexcept;
    /// Devices for which something was.
    [[nodiscard]] std::vector<int> prepared_devices() const;
    /// Adds the pieces of `more`, which are ready. May throw for want of memory: then nothing has changed.
    void add_prepared(int device, store::HostArena& more);
    /// Takes out what was prepared for the device beyond `most` bytes, as a batch that nothing needs; null if
    /// there is nothing. May throw for want of memory: then nothing has changed.
    [[nodiscard]] std::unique_ptr<Batch> take_prepared(int device, Bytes most);
    /// Unpins all that was prepared.
    [[nodiscard]] bool unpin_prepared() noexcept;
    /// Takes out all that was prepared, behind `batches`.
    void take_prepared(std::list<std::unique_ptr<Batch>>& batches) noexcept;

private:
    store::Pinner* pinner_;
    std::map<int, std::list<std::unique_ptr<Batch>>> stocks_; ///< one of each device, or none
};

} // namespace gpu_sleep::contents
