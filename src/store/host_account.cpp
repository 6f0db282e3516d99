// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The file: its lock, its places, and who still holds them.

#include "store/host_account.hpp"

#include "base/guard.hpp"
#include "base/memory.hpp"
#include "base/process.hpp"

#include <array>
#include <thread>

namespace gpu_sleep::store {
namespace {

constexpr const char* k_name = "host-memory";
constexpr std::size_t k_places = 4096; // of processes that hold contents at one time
constexpr std::size_t k_place_bytes = 16;
constexpr off_t k_refused_at = k_places * k_place_bytes; ///< when somebody was refused last
constexpr Milliseconds k_refusal_counts{1'000};
constexpr off_t k_turn_at = off_t{1} << 40; ///< a byte beyond all places, whose lock is the whole file's

off_t offset_of(std::size_t place) noexcept {
    return static_cast<off_t>(place * k_place_bytes);
}

bool lock(const LockedFile& file, off_t start, off_t bytes) noexcept {
    return file.lock(LockedFile::Holder::descriptor, start, bytes) == LockedFile::Lock::taken;
}

/// Whether somebody holds the place, if it is not locked by way of `file`.
bool is_held(const LockedFile& file, std::size_t place) noexcept {
    return file.find_lock(LockedFile::Holder::descriptor, offset_of(place), k_place_bytes).has_value();
}

Bytes sum(Bytes one, Bytes other) noexcept {
    return one + std::min(other, std::numeric_limits<Bytes>::max() - one);
}

/// Made if it is missing. Empty where that fails, or it is not the user's alone.
LockedFile open_account(const std::string& directory) noexcept {
    auto file = guarded([&]() -> Result<LockedFile> {
        const auto parent = open_private_directory(AT_FDCWD, directory, ::geteuid());
        return parent ? LockedFile::open(parent.get(), k_name) : LockedFile();
    });
    return file ? *std::move(file) : LockedFile();
}

/// Has others give back what they can do without. The clock counts from the machine's start, for all alike.
void write_refusal(int file) noexcept {
    const auto now = Clock::now().time_since_epoch().count();
    [[maybe_unused]] const auto written = ::pwrite(file, &now, sizeof now, k_refused_at);
}

} // namespace

/// The file, and the turn to change it: that lasts for some microseconds, so whoever has not got it after a
/// while goes on without it, for its holder may be stopped.
class HostAccount::Locked : public LockedFile {
public:
    explicit Locked(const std::string& directory) noexcept : LockedFile(open_account(directory)) {
        constexpr Milliseconds k_patience{200};
        constexpr Milliseconds k_pause{1};
        const auto deadline = Clock::now() + k_patience;
        while (*this && !store::lock(*this, k_turn_at, 1) && Clock::now() < deadline)
            std::this_thread::sleep_for(k_pause);
    }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    /// A child of fork() may have a copy of the descriptor, so its end alone does not unlock the file.
    ~Locked() {
        if (is_held()) unlock(LockedFile::Holder::descriptor, k_turn_at, 1);
    }
};

HostAccount::~HostAccount() {
    const MutexLock lock(mutex_);
    look_for_fork();
    leave_place();
}

void HostAccount::look_for_fork() noexcept {
    if (process_ == ::getpid()) {
        if (holder_ && !holder_.is_held()) leave_place();
        return;
    }
    if (process_ != 0) own_ = {};
    new (&anchor_) Anchor;     // the parent's alone
    new (&holder_) UnsharedFd; // likewise: close_unshared_fds()
    place_.reset();
    process_ = ::getpid();
}

void HostAccount::leave_place() noexcept {
    anchor_.reset();
    holder_.reset();
    place_.reset();
}

void HostAccount::find_place(const LockedFile& file) noexcept {
    if (has_place_in(file)) return;
    leave_place(); // somebody has removed the file that it was in
    // A descriptor of its own, whose locks last as long as the page is mapped.
    auto holder = open_account(directory_);
    if (!holder || holder.identity() != file.identity()) return;
    std::size_t place = 0;
    while (place < k_places && !lock(holder, offset_of(place), k_place_bytes)) ++place;
    if (place == k_places) return;
    anchor_ = make_anchor(holder.get());
    if (!anchor_) return;
    place_ = place;
    file_ = holder.identity();
    if (!lock_lasts(holder.get())) holder_ = UnsharedFd(std::move(holder));
    write(file); // over what a killed process has left there, which would count from now on
}

bool HostAccount::has_place_in(const LockedFile& file) const noexcept {
    return place_ && file.identity() == file_;
}

HostAccount::Place HostAccount::others(const LockedFile& file) const noexcept {
    static_assert(sizeof(Place) == k_place_bytes);
    std::array<Place, 128> places{}; // few at a time: the stack may be the program's
    Place all;
    const auto own = has_place_in(file) ? *place_ : k_places;
    for (std::size_t first = 0; first < k_places; first += places.size()) {
        const auto got = ::pread(file.get(), places.data(), sizeof places, offset_of(first));
        const auto count = got < 0 ? 0 : static_cast<std::size_t>(got) / k_place_bytes;
        for (std::size_t i = 0; i < count; ++i) {
            const auto& [held, spare] = places[i];
            if (held == 0 || own == first + i || !is_held(file, first + i)) continue;
            all.held = sum(all.held, held);
            all.spare = sum(all.spare, std::min(spare, held));
        }
        if (count < places.size()) break;
    }
    return all;
}

bool HostAccount::write(const LockedFile& file) const noexcept {
    if (!has_place_in(file)) return true;
    const auto own = own_;
    return ::pwrite(file.get(), &own, sizeof own, offset_of(*place_)) == sizeof own;
}

void HostAccount::limit(std::optional<Bytes> most) noexcept {
    const MutexLock lock(mutex_);
    limit_ = most;
}

std::optional<HostAccount::Room> HostAccount::room() noexcept {
    const MutexLock lock(mutex_);
    if (!limit_) return std::nullopt;
    look_for_fork();
    Place all;
    if (const Locked file(directory_); file) all = others(file);
    const auto held = sum(own_.held, all.held);
    return Room{*limit_ - std::min(*limit_, held), held > *limit_, all.spare};
}

Result<void> HostAccount::take(Bytes bytes) {
    const MutexLock lock(mutex_);
    look_for_fork();
    const Locked file(directory_);
    Bytes held = own_.held;
    if (file) {
        find_place(file);
        if (limit_) held = sum(held, others(file).held);
    }
    if (limit_ && sum(held, bytes) > *limit_)
        return Error{
            ErrorCode::out_of_host_memory,
            fmt::format("not enough host memory to keep the contents: {} more are needed, and this user's "
                        "processes already hold {} of the {} allowed to them",
                        format_bytes(bytes), format_bytes(held), format_bytes(*limit_)),
            std::string(k_where)};
    own_.held += bytes;
    if (!file || write(file) || !limit_) return {};
    const int why = errno;
    own_.held -= bytes; // nobody else would know of it
    return errno_error(
        ErrorCode::out_of_host_memory, why, "write",
        fmt::format("cannot count host memory in {}/{}, as its limit needs", directory_, k_name));
}

void HostAccount::give(Bytes bytes) noexcept {
    const MutexLock lock(mutex_);
    if (process_ != ::getpid()) return;
    look_for_fork();
    own_.held -= std::min<Bytes>(own_.held, bytes);
    if (const auto file = open_account(directory_); file) write(file);
}

void HostAccount::stay_counted() noexcept {
    const MutexLock lock(mutex_);
    look_for_fork();
    if (own_.held == 0) return;
    if (const auto file = open_account(directory_); file) find_place(file);
}

void HostAccount::note_spare(Bytes bytes) noexcept {
    const MutexLock lock(mutex_);
    look_for_fork();
    if (own_.spare == bytes) return;
    own_.spare = bytes;
    if (const auto file = open_account(directory_); file) write(file);
}

bool HostAccount::is_wanted() noexcept {
    if (const auto now = room(); now && now->is_exceeded) return true;
    const MutexLock lock(mutex_);
    if (own_.held == 0) return false;
    const auto file = open_account(directory_);
    Clock::rep refused = 0;
    if (!file || ::pread(file.get(), &refused, sizeof refused, k_refused_at) != sizeof refused) return false;
    const auto ago = Clock::now().time_since_epoch() - Clock::duration(refused);
    return ago >= Clock::duration::zero() && ago < k_refusal_counts;
}

Result<void> HostAccount::await(Bytes bytes, Milliseconds patience,
                                const std::function<Result<void>()>& look) {
    constexpr Milliseconds k_pause{20};
    for (const auto deadline = Clock::now() + patience; Clock::now() < deadline;) {
        const auto now = room();
        if (!now || bytes <= now->bytes || now->spare == 0) return {};
        if (const auto file = open_account(directory_); file) write_refusal(file.get());
        GPU_SLEEP_TRY(look());
        std::this_thread::sleep_for(k_pause);
    }
    return {};
}

Result<void> HostShare::take(HostAccount& account, Bytes bytes) {
    if (bytes == 0) return {};
    GPU_SLEEP_TRY(account.take(bytes));
    account_ = &account;
    bytes_ += bytes;
    return {};
}

void HostShare::absorb(HostShare& other, Bytes bytes) noexcept {
    const auto taken = std::min(bytes, other.bytes_);
    if (taken == 0) return;
    account_ = other.account_;
    other.bytes_ -= taken;
    bytes_ += taken;
}

void HostShare::give(Bytes bytes) noexcept {
    const auto given = std::min(bytes, bytes_);
    bytes_ -= given;
    if (given > 0) account_->give(given);
}

} // namespace gpu_sleep::store
