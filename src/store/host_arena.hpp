// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Host memory that keeps contents: reserved at once, filled with pages and pinned piece by piece
// (arena_preparer.hpp), and given back as contents die.

#pragma once

#include "store/host_budget.hpp"

#include <atomic>
#include <type_traits>
#include <vector>

namespace gpu_sleep::store {

/// Makes host memory known to the GPUs (page-locked) and forgets it again. Implemented where the driver is
/// known. Called from several threads at once, for disjoint memory. Must outlive the arenas that use it.
class Pinner {
public:
    virtual ~Pinner() = default;
    /// Errors: any; the memory is then used unpinned.
    [[nodiscard]] virtual Result<void> pin(std::span<std::byte> memory) = 0;
    /// Returns false if the memory is still pinned: it must then stay where it is for good.
    [[nodiscard]] virtual bool unpin(std::span<std::byte> memory) noexcept = 0;
};

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

/// Host memory in pieces of `k_piece_bytes` (the last may be shorter). Anonymous, private, on huge pages
/// where they can be had, left out of core dumps and of children. Each piece begins on a huge page; together
/// they take no more memory than `bytes` rounded up to a page. Neither copyable nor movable; its figures may
/// be read anywhere.
class HostArena {
public:
    /// Populating and pinning together ran a fifth faster by pieces of 32 MiB on eight threads than by pieces
    /// of 128 MiB on six, on one H200.
    static constexpr Bytes k_piece_bytes = 32 * k_mib;
    /// Contents begin at multiples of it, which keeps transfers at full speed.
    static constexpr Bytes k_alignment = 256;

    /// Reserves address space for `bytes`; takes no memory yet. `pinner` may be null: nothing is pinned. The
    /// first pieces are taken out of `stock`, which may be null, as far as it has any: they are ready. The
    /// others lie together, and are taken of `budget`, if there is one, until they are given back; that goes
    /// along with pieces. Errors: invalid_argument (zero bytes), out_of_host_memory (no address space: too
    /// large, or a limit on it; beyond the budget). Source: mmap(2), madvise(2).
    [[nodiscard]] static Result<std::unique_ptr<HostArena>>
    create(Bytes bytes, Pinner* pinner, HostArena* stock = nullptr, HostBudget* budget = nullptr);
    /// An arena without pieces.
    [[nodiscard]] static std::unique_ptr<HostArena> create_stock(Pinner* pinner);
    /// Makes all of it ready, on this thread. Errors: out_of_host_memory.
    [[nodiscard]] Result<void> make_ready();
    /// Takes the last `count` pieces of `stock`, all of them ready and whole, and puts them behind its own,
    /// which are whole, too. Where there is no memory for it (which is thrown) nothing has changed.
    void absorb(HostArena& stock, std::size_t count);

    HostArena(const HostArena&) = delete;
    HostArena& operator=(const HostArena&) = delete;
    /// Unpins one more piece, which takes 0.4 ms; false when none is left to unpin. For whoever gives an
    /// arena back and has something else to do in between. No ArenaPreparer may still work on it.
    [[nodiscard]] bool unpin_next() noexcept;
    /// Unpins all of it, as if no piece had been tried yet (pin_next()); 12 ms a GiB. What the driver does
    /// not let go stays pinned: then it returns false. While nobody copies from or to it; it may be out of
    /// reach (protect()).
    [[nodiscard]] bool unpin_all() noexcept;
    /// What arenas of this process have left pinned for good. Thread-safe.
    [[nodiscard]] static Bytes stuck_bytes() noexcept;
    /// Gives back what of the piece lies in none of `needed`, parts of the arena in their order, by whole
    /// huge pages: one of which only a part went would be split, and would come back under pressure alone.
    /// Returns how much that was; what the driver does not let go stays. What is needed and was pinned is
    /// pinned again, which takes 0.5 ms for a whole piece: to wait for the next wake with that, or to copy
    /// unpinned, would make the wake up to five times as long. What cannot be pinned is copied unpinned.
    /// While nobody copies from or to the arena, which may be out of reach (protect()). Where there is no
    /// memory for it (which is thrown) nothing has changed.
    [[nodiscard]] Bytes shrink(std::size_t index, std::span<const Span> needed);
    [[nodiscard]] Span span_of(std::size_t index) const noexcept {
        return {index * k_piece_bytes, pieces_[index].memory.size()};
    }
    /// Puts the memory out of reach of this process's threads, or within it again; the GPUs' copies of what
    /// is pinned do not ask. One system call each for all pieces that lie together. What cannot be protected
    /// stays in reach. Errors of unprotect(): out_of_host_memory (the kernel has no room to note it; some may
    /// still be out of reach).
    /// Source: mprotect(2).
    void protect() noexcept;
    [[nodiscard]] Result<void> unprotect() noexcept;
    /// Unpins and returns all memory, but for parts that cannot be unpinned: those stay for good, with a
    /// warning. No ArenaPreparer may still work on it. Takes 12 ms a GiB when pinned.
    ~HostArena();

    [[nodiscard]] Bytes bytes() const noexcept {
        return pieces_.empty() ? 0 : span_of(piece_count() - 1).end();
    }
    /// Where the first piece is.
    [[nodiscard]] std::byte* data() const noexcept { return pieces_.front().memory.data(); }
    /// Where the byte `offset` is; the rest of its piece follows it.
    [[nodiscard]] std::byte* at(Bytes offset) const noexcept {
        return pieces_[offset / k_piece_bytes].memory.data() + offset % k_piece_bytes;
    }
    /// Where `span` can be read, which is within reach; in `buffer`, where it lies apart. May throw for want
    /// of memory. On any thread, if nobody writes there.
    [[nodiscard]] const std::byte* read(Span span, std::vector<std::byte>& buffer) const;
    /// Copies `span` to `to`, also while it is out of reach. Errors: io_failed. Source: proc(5).
    [[nodiscard]] Result<void> read(Span span, std::byte* to) const;
    /// Calls `use(piece index, part)` for each part of `span` that lies in one piece: a copy must not cross
    /// the border of a registration. Returns the first error of `use`, after which it is not called, if that
    /// returns Results.
    template <class Use, class Returned = std::invoke_result_t<Use, std::size_t, Span>>
    static Returned for_each_piece(Span span, Use&& use) {
        while (span.bytes > 0) {
            const auto index = static_cast<std::size_t>(span.offset / k_piece_bytes);
            const Span part{span.offset, std::min(span.bytes, (index + 1) * k_piece_bytes - span.offset)};
            span = {part.end(), span.bytes - part.bytes};
            if constexpr (std::is_void_v<Returned>)
                use(index, part);
            else
                GPU_SLEEP_TRY(use(index, part));
        }
        return Returned();
    }

    // What is needed of it: guarded by whoever keeps contents in it.
    /// Memory that it holds.
    [[nodiscard]] Bytes held() const noexcept;
    /// `span`, with what follows up to the next that may begin, is no longer needed. Returns whether another
    /// piece has become worth shrinking.
    [[nodiscard]] bool forget(Span span) noexcept;
    /// A piece that is worth shrinking.
    [[nodiscard]] std::optional<std::size_t> find_waste() const noexcept;
    /// It is not worth that from now on, whatever comes of it, until more of it dies.
    void note_tried(std::size_t index) noexcept { pieces_[index].use.dead = 0; }
    void note_shrunk(std::size_t index, Bytes given_back) noexcept { pieces_[index].use.held -= given_back; }

    [[nodiscard]] std::size_t piece_count() const noexcept { return pieces_.size(); }
    [[nodiscard]] std::span<std::byte> piece(std::size_t index) const noexcept {
        return pieces_[index].memory;
    }
    /// Whether the piece has its pages, and was pinned if it can be.
    [[nodiscard]] bool is_ready(std::size_t index) const noexcept { return pieces_[index].is_ready; }
    /// Copies `from` to the byte `offset` and on, which gets its pages by that, past the processor's caches.
    /// The caller has claimed them. On any thread, for disjoint parts. Errors: out_of_host_memory.
    [[nodiscard]] Result<void> write(Bytes offset, std::span<const std::byte> from) const;
    /// All pieces are ready, by write().
    void note_ready() noexcept;
    /// Pins what of the piece is not, once; what cannot be pinned stays so. It takes 1 ms, has its pages, and
    /// may be out of reach (protect()).
    void pin(std::size_t index) noexcept;
    /// Does so with the next one; false when all were tried.
    [[nodiscard]] bool pin_next() noexcept;
    [[nodiscard]] bool has_untried() const noexcept { return tried_ < piece_count(); }
    /// Whether all that is left of the piece is pinned; false means that copies to and from it go through the
    /// driver's own staging. Once the piece has been waited for, and not while it is shrunk.
    [[nodiscard]] bool is_pinned(std::size_t index) const noexcept;

private:
    friend class ArenaPreparer;

    /// A registration with the driver, which knows whole ones only. Begins on a huge page.
    struct Part {
        std::span<std::byte> memory;
        bool is_pinned = false;
    };

    struct Piece {
        std::span<std::byte> memory;
        std::vector<Part> parts; ///< what of it is left, in order
        bool is_ready = false;
        bool was_tried = false; ///< to be pinned
        PieceUse use{};         ///< all is needed at first
    };

    HostArena(Pinner* pinner, std::vector<Piece> pieces) noexcept
        : pinner_(pinner), pieces_(std::move(pieces)) {}
    /// Takes the last piece out.
    [[nodiscard]] Piece take_piece() noexcept;
    /// Does so for all pieces that lie together at once, then for the next ones. Returns whether it could for
    /// all.
    bool set_access(int access) const noexcept;
    /// For each part once, if it `is_new`; different parts on different threads. Errors: out_of_host_memory.
    [[nodiscard]] Result<void> give_pages(std::span<std::byte> memory, bool is_new) const;
    /// Pins the part, which has its pages, if that can be done.
    void pin(Part& part) noexcept;
    /// Returns false if the part is still pinned.
    bool unpin(Part& part) noexcept;
    /// What of `part`, which begins at `begin`, is `needed`, on whole huge pages.
    [[nodiscard]] static std::vector<Part> rest_of(const Part& part, Bytes begin,
                                                   std::span<const Span> needed);
    /// Drops the pages of `part`, which is not pinned, but for those of `rest`. Returns how much.
    Bytes drop_but(const Part& part, std::span<const Part> rest) noexcept;

    HostShare share_; ///< destroyed last
    Pinner* pinner_;
    std::vector<Piece> pieces_;
    std::size_t unpinned_ = 0; ///< pieces that unpin_next() has gone through
    std::size_t tried_ = 0;    ///< pieces that pin_next() has
    bool is_protected_ = false;
    std::atomic<bool> has_complained_{false}; ///< of memory that cannot be pinned
};

} // namespace gpu_sleep::store
