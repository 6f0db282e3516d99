// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reserving, populating and pinning host memory, and giving it back.

#include "store/host_arena.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

// The C library of older systems does not know it; the kernel has it since 5.14.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace gpu_sleep::store {
namespace {

constexpr Bytes k_huge_page_bytes = 2 * k_mib;

std::atomic<Bytes> g_stuck{0};

Bytes page_bytes() {
    static const auto bytes = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
    return bytes;
}

/// Reserves `bytes`, whole pages, from the beginning of a huge page on. Returns null and sets errno on
/// failure. The mapping ends where the arena does: the kernel gives huge pages only within one mapping, so
/// the last 2 MiB come in small pages and not one byte is rounded up.
std::byte* reserve(Bytes bytes) {
    const auto longer = bytes + k_huge_page_bytes;
    // Of a program that locks all that it maps (mlockall), the kernel fills at once what is within reach.
    void* const mapping =
        ::mmap(nullptr, longer, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(mapping);
    const auto head =
        round_up(reinterpret_cast<Bytes>(mapping), k_huge_page_bytes) - reinterpret_cast<Bytes>(mapping);
    if (head > 0) ::munmap(begin, head);
    if (head + bytes < longer) ::munmap(begin + head + bytes, longer - head - bytes);
    ::munlock(begin + head, bytes);
    if (::mprotect(begin + head, bytes, PROT_READ | PROT_WRITE) == 0) return begin + head;
    ::munmap(begin + head, bytes); // errno stays
    return nullptr;
}

/// `memory` with the rest of its last page.
std::span<std::byte> whole_pages(std::span<std::byte> memory) noexcept {
    return {memory.data(), round_up(memory.size(), page_bytes())};
}

void unmap(std::byte* begin, std::byte* end) noexcept {
    if (begin != end) ::munmap(begin, static_cast<std::size_t>(end - begin));
}

/// Gives back the pages between the two; the addresses stay. Returns how much that was.
Bytes drop(std::byte* begin, std::byte* end) noexcept {
    const auto bytes = static_cast<Bytes>(end - begin);
    if (bytes == 0) return 0;
    if (::madvise(begin, bytes, MADV_DONTNEED) == 0) return bytes;
    // A program that locks all its memory (mlockall) has locked this, too.
    return ::munlock(begin, bytes) == 0 && ::madvise(begin, bytes, MADV_DONTNEED) == 0 ? bytes : 0;
}

/// `memory` begins on a page.
bool set_access(std::span<std::byte> memory, int access) noexcept {
    const auto pages = whole_pages(memory);
    return ::mprotect(pages.data(), pages.size(), access) == 0;
}

/// Gives `memory` pages by writing to each: for kernels that cannot do it at once.
void touch(std::span<std::byte> memory) {
    for (std::size_t at = 0; at < memory.size(); at += page_bytes())
        *const_cast<volatile std::byte*>(&memory[at]) = std::byte{0};
}

/// Gives `memory` pages. A kernel that cannot do it at once has them given by touching each, if the memory
/// was never written to, and else leaves that to whoever writes. Returns 0 or an errno: ENOMEM (none left),
/// EFAULT (the same, seen from within the fault), EHWPOISON (a broken one).
int populate(std::span<std::byte> memory, bool is_new) {
    constexpr int k_tries = 100; // each continues where the last was interrupted
    for (int i = 0; i < k_tries; ++i) {
        if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return 0;
        if (errno == EINVAL) {
            if (is_new) touch(memory);
            return 0;
        }
        if (errno != EINTR && errno != EAGAIN) return errno;
    }
    return errno;
}

/// `to` begins where 16 bytes do. What is written is not read again soon, and whatever else was in the caches
/// stays there.
void copy_past_caches(std::byte* to, std::span<const std::byte> from) noexcept {
    std::size_t done = 0;
#ifdef __SSE2__
    for (; done + sizeof(__m128i) <= from.size(); done += sizeof(__m128i))
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + done)));
    _mm_sfence(); // before anybody is told that it is there
#endif
    std::copy(from.begin() + static_cast<std::ptrdiff_t>(done), from.end(), to + done);
}

} // namespace

bool HostArena::set_access(int access) const noexcept {
    std::span<std::byte> run;
    bool is_set = true;
    for (const auto& piece : pieces_) {
        const auto pages = whole_pages(piece.memory);
        if (!run.empty() && run.data() + run.size() == pages.data()) {
            run = {run.data(), run.size() + pages.size()};
            continue;
        }
        if (!run.empty()) is_set &= store::set_access(run, access);
        run = pages;
    }
    return (run.empty() || store::set_access(run, access)) && is_set;
}

Result<std::unique_ptr<HostArena>> HostArena::create(Bytes bytes, Pinner* pinner, HostArena* stock,
                                                     HostBudget* budget) {
    constexpr Bytes k_max_bytes = std::numeric_limits<Bytes>::max() / 2; // rounding up must not overflow
    if (bytes == 0) return make_error(ErrorCode::invalid_argument, "an arena of zero bytes");
    const auto taken = stock ? std::min<std::size_t>(stock->piece_count(), bytes / k_piece_bytes) : 0;
    const auto rest = bytes - taken * k_piece_bytes;
    const auto whole = round_up(std::min(rest, k_max_bytes), page_bytes());
    HostShare share; // taken before anything is, as the stock would lose its pieces
    if (budget) GPU_SLEEP_TRY(budget->take(share, rest));
    auto* const data = rest > 0 ? reserve(whole) : nullptr;
    if (rest > 0 && data == nullptr)
        return errno_error(ErrorCode::out_of_host_memory, errno, "mmap",
                           fmt::format("cannot reserve {} of address space for contents (see ulimit -v)",
                                       format_bytes(rest)));
    // Advice: it works without. Pinned pages would be copied for a child, and dumped into a core.
    for (const int advice : {MADV_DONTFORK, MADV_DONTDUMP, MADV_HUGEPAGE}) ::madvise(data, whole, advice);
    auto arena = guarded([&]() -> Result<std::unique_ptr<HostArena>> {
        std::vector<Piece> pieces(taken);
        for (Bytes at = 0; at < rest; at += k_piece_bytes) {
            const std::span piece(data + at, std::min(k_piece_bytes, rest - at));
            pieces.push_back({.memory = piece, .parts = {{piece}}, .use = {piece.size(), piece.size()}});
        }
        return std::unique_ptr<HostArena>(new HostArena(pinner, std::move(pieces)));
    });
    if (!arena) {
        unmap(data, data + whole);
        return arena;
    }
    for (std::size_t i = 0; i < taken; ++i) (*arena)->pieces_[i] = stock->take_piece();
    if (stock) (*arena)->share_.absorb(stock->share_, taken * k_piece_bytes);
    (*arena)->share_.absorb(share, rest);
    return arena;
}

std::unique_ptr<HostArena> HostArena::create_stock(Pinner* pinner) {
    return std::unique_ptr<HostArena>(new HostArena(pinner, {}));
}

Result<void> HostArena::make_ready() {
    for (std::size_t i = 0; i < piece_count(); ++i) {
        GPU_SLEEP_TRY(give_pages(piece(i), true));
        pin(i);
    }
    note_ready();
    return {};
}

void HostArena::absorb(HostArena& stock, std::size_t count) {
    pieces_.reserve(pieces_.size() + count);
    for (std::size_t i = 0; i < count; ++i) pieces_.push_back(stock.take_piece());
    share_.absorb(stock.share_, count * k_piece_bytes);
}

HostArena::Piece HostArena::take_piece() noexcept {
    auto piece = std::move(pieces_.back());
    pieces_.pop_back();
    return piece;
}

HostArena::~HostArena() {
    // All pieces are unpinned before the first is returned: unmapping stops every thread of the program for a
    // moment, and this way it does so at the end only, not all along its first work after waking.
    while (unpin_next()) {
    }
    // If the driver still holds a part, whatever came to lie there would be taken for pinned: it must stay.
    Bytes stuck = 0;
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
    for (const auto& piece : pieces_) {
        const auto pages = whole_pages(piece.memory);
        if (pages.data() != end) unmap(std::exchange(begin, pages.data()), end);
        end = pages.data() + pages.size();
        for (const auto& part : piece.parts) {
            if (!part.is_pinned) continue;
            unmap(begin, part.memory.data());
            begin = part.memory.data() + round_up(part.memory.size(), page_bytes());
            stuck += part.memory.size();
        }
    }
    unmap(begin, end);
    g_stuck += stuck;
    if (stuck > 0)
        log::warning("{} of host memory could not be unpinned, and remain in use", format_bytes(stuck));
}

bool HostArena::unpin_next() noexcept {
    while (unpinned_ < piece_count()) {
        bool was_pinned = false;
        for (auto& part : pieces_[unpinned_++].parts) {
            was_pinned |= part.is_pinned;
            unpin(part);
        }
        if (was_pinned) return true;
    }
    return false;
}

bool HostArena::unpin_all() noexcept {
    bool are_all_unpinned = true;
    for (auto& piece : pieces_) {
        for (auto& part : piece.parts) are_all_unpinned &= unpin(part);
        piece.was_tried = false;
    }
    tried_ = 0;
    return are_all_unpinned;
}

Bytes HostArena::stuck_bytes() noexcept {
    return g_stuck;
}

void HostArena::protect() noexcept {
    // What is out of reach does not count against a limit on data, and might not come within reach again.
    struct rlimit limit {};
    const bool is_limited = ::getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
    if (is_protected_ || is_limited) return;
    is_protected_ = true; // as far as it can be
    set_access(PROT_NONE);
}

Result<void> HostArena::unprotect() noexcept {
    if (is_protected_ && !set_access(PROT_READ | PROT_WRITE))
        return errno_error(ErrorCode::out_of_host_memory, errno, "mprotect", "cannot reach kept contents");
    is_protected_ = false;
    return {};
}

bool HostArena::is_pinned(std::size_t index) const noexcept {
    const auto& parts = pieces_[index].parts;
    return std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.is_pinned; });
}

Result<void> HostArena::give_pages(std::span<std::byte> memory, bool is_new) const {
    if (const int failure = store::populate(memory, is_new); failure != 0)
        return errno_error(ErrorCode::out_of_host_memory, failure, "madvise",
                           fmt::format("cannot get {} of host memory for contents", format_bytes(bytes())));
    return {};
}

void HostArena::pin(Part& part) noexcept {
    if (pinner_ == nullptr || part.is_pinned) return;
    const auto pinned = guarded([&] { return pinner_->pin(part.memory); });
    part.is_pinned = pinned.has_value();
    if (!pinned && !has_complained_.exchange(true))
        log::info("copies will be slower: host memory could not be pinned: {}", pinned.error().message);
}

void HostArena::pin(std::size_t index) noexcept {
    auto& piece = pieces_[index];
    if (std::exchange(piece.was_tried, true)) return;
    // What is out of reach cannot be pinned.
    if (is_protected_ && !store::set_access(piece.memory, PROT_READ | PROT_WRITE)) return;
    for (auto& part : piece.parts) pin(part);
    if (is_protected_) static_cast<void>(store::set_access(piece.memory, PROT_NONE));
}

bool HostArena::pin_next() noexcept {
    while (tried_ < piece_count() && pieces_[tried_].was_tried) ++tried_;
    if (tried_ < piece_count()) pin(tried_++);
    return tried_ < piece_count();
}

Result<void> HostArena::write(Bytes offset, std::span<const std::byte> from) const {
    return for_each_piece({offset, from.size()}, [&](std::size_t, Span part) -> Result<void> {
        auto* const to = at(part.offset);
        // A part of a page goes with the rest of it.
        auto* const page = to - reinterpret_cast<Bytes>(to) % page_bytes();
        GPU_SLEEP_TRY(give_pages({page, static_cast<std::size_t>(to + part.bytes - page)}, false));
        copy_past_caches(to, from.subspan(part.offset - offset, part.bytes));
        return {};
    });
}

void HostArena::note_ready() noexcept {
    for (auto& piece : pieces_) piece.is_ready = true;
}

bool HostArena::unpin(Part& part) noexcept {
    if (part.is_pinned) part.is_pinned = !pinner_->unpin(part.memory);
    return !part.is_pinned;
}

std::vector<HostArena::Part> HostArena::rest_of(const Part& part, Bytes begin, std::span<const Span> needed) {
    const auto offset_of = [&](Bytes at) {
        return std::clamp(at, begin, begin + part.memory.size()) - begin;
    };
    std::vector<Part> rest;
    for (const auto& span : needed) {
        const auto first = offset_of(span.offset) / k_huge_page_bytes * k_huge_page_bytes;
        const auto last = offset_of(span.end());
        if (offset_of(span.offset) == last) continue; // it lies elsewhere
        const auto end = std::min(round_up(last, k_huge_page_bytes), part.memory.size());
        auto* const data = part.memory.data() + first;
        if (!rest.empty() && rest.back().memory.data() + rest.back().memory.size() >= data)
            rest.back().memory = {rest.back().memory.data(), part.memory.data() + end};
        else
            rest.push_back({part.memory.subspan(first, end - first)});
    }
    return rest;
}

Bytes HostArena::drop_but(const Part& part, std::span<const Part> rest) noexcept {
    Bytes dropped = 0;
    auto* at = part.memory.data();
    for (const auto& kept : rest) {
        dropped += drop(at, kept.memory.data());
        at = kept.memory.data() + kept.memory.size();
    }
    dropped += drop(at, part.memory.data() + part.memory.size());
    share_.give(dropped);
    return dropped;
}

Bytes HostArena::shrink(std::size_t index, std::span<const Span> needed) {
    auto& parts = pieces_[index].parts;
    // What takes memory comes first: behind the first unpinning nothing may fail.
    std::vector<std::vector<Part>> rests;
    std::size_t most = 0;
    bool pins_again = false;
    for (const auto& part : parts) {
        const auto offset = static_cast<Bytes>(part.memory.data() - piece(index).data());
        rests.push_back(rest_of(part, span_of(index).offset + offset, needed));
        most += std::max<std::size_t>(1, rests.back().size());
        pins_again |= part.is_pinned && !rests.back().empty();
    }
    std::vector<Part> left;
    left.reserve(most);
    // What is out of reach cannot be pinned again.
    const bool is_reached = is_protected_ && pins_again;
    if (is_reached && !store::set_access(piece(index), PROT_READ | PROT_WRITE)) return 0;
    Bytes dropped = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const bool is_whole =
            rests[i].size() == 1 && rests[i].front().memory.size() == parts[i].memory.size();
        const bool was_pinned = parts[i].is_pinned; // else the driver may be out of reach
        if (is_whole || !unpin(parts[i])) {
            left.push_back(parts[i]);
            continue;
        }
        dropped += drop_but(parts[i], rests[i]);
        for (const auto& part : rests[i]) {
            left.push_back(part);
            if (was_pinned) pin(left.back());
        }
    }
    parts = std::move(left);
    if (is_reached) static_cast<void>(store::set_access(piece(index), PROT_NONE));
    return dropped;
}

const std::byte* HostArena::read(Span span, std::vector<std::byte>& buffer) const {
    const auto* const begin = at(span.offset);
    if (at(span.end() - 1) == begin + (span.bytes - 1)) return begin;
    buffer.clear();
    for_each_piece(span, [&](std::size_t, Span part) {
        buffer.insert(buffer.end(), at(part.offset), at(part.offset) + part.bytes);
    });
    return buffer.data();
}

Result<void> HostArena::read(Span span, std::byte* to) const {
    // The kernel reads what is out of reach of threads, and so nobody else's access to it changes.
    const UniqueFd memory(open_file(AT_FDCWD, "/proc/self/mem", O_RDONLY | O_CLOEXEC));
    int failure = memory ? 0 : errno;
    for_each_piece(span, [&](std::size_t, Span part) {
        while (failure == 0 && part.bytes > 0) {
            const auto from = reinterpret_cast<off_t>(at(part.offset));
            const auto count = ::pread(memory.get(), to, part.bytes, from);
            if (count <= 0) {
                failure = count < 0 ? errno : EIO;
                if (failure == EINTR) failure = 0;
                continue;
            }
            to += count;
            part = {part.offset + static_cast<Bytes>(count), part.bytes - static_cast<Bytes>(count)};
        }
    });
    if (failure == 0) return {};
    return errno_error(ErrorCode::io_failed, failure, memory ? "pread" : "open", "cannot read kept contents");
}

Bytes HostArena::held() const noexcept {
    return sum_of(pieces_, [](const Piece& piece) { return piece.use.held; });
}

bool HostArena::forget(Span span) noexcept {
    bool has_more = false;
    span.bytes = std::min(round_up(span.bytes, k_alignment), bytes() - span.offset);
    for_each_piece(span, [&](std::size_t index, Span part) {
        auto& use = pieces_[index].use;
        const bool was_worth_it = use.is_worth_shrinking();
        use.live -= part.bytes;
        use.dead += part.bytes;
        has_more |= !was_worth_it && use.is_worth_shrinking();
    });
    return has_more;
}

std::optional<std::size_t> HostArena::find_waste() const noexcept {
    for (std::size_t i = 0; i < piece_count(); ++i)
        if (pieces_[i].use.is_worth_shrinking()) return i;
    return std::nullopt;
}

} // namespace gpu_sleep::store
