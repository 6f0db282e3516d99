// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Noting descriptors for a fork; owners, modes and file systems.

#include "store/own_file.hpp"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>

namespace gpu_sleep::store {
namespace {

constexpr std::size_t k_anchor_bytes = 1; // of which the kernel makes a page

} // namespace

void AnchorRelease::operator()(void* page) const noexcept {
    ::munmap(page, k_anchor_bytes);
}

Anchor make_anchor(int fd) noexcept {
    void* const page = ::mmap(nullptr, k_anchor_bytes, PROT_NONE, MAP_PRIVATE, fd, 0);
    Anchor anchor(page == MAP_FAILED ? nullptr : page);
    if (anchor && ::madvise(page, k_anchor_bytes, MADV_DONTFORK) != 0) anchor.reset();
    return anchor;
}

/// Of one descriptor. Never freed, but used again.
struct UnsharedFd::Note {
    static constexpr int k_free = -1;
    static constexpr int k_being_written = -2;

    std::atomic<int> fd{k_being_written};
    FileIdentity file;    ///< the number may be somebody else's by now
    Note* next = nullptr; ///< not changed later

    inline static std::atomic<Note*> s_first{nullptr};

    /// One to be written. Null when memory is short.
    static Note* take() noexcept {
        for (auto* note = s_first.load(std::memory_order_acquire); note != nullptr; note = note->next) {
            int expected = k_free;
            if (note->fd.compare_exchange_strong(expected, k_being_written)) return note;
        }
        auto* const made = new (std::nothrow) Note;
        if (made == nullptr) return nullptr;
        made->next = s_first.load(std::memory_order_relaxed);
        while (!s_first.compare_exchange_weak(made->next, made)) {
        }
        return made;
    }
};

UnsharedFd::UnsharedFd(LockedFile file) noexcept : LockedFile(std::move(file)) {
    struct stat status = {};
    if (!*this || ::fstat(get(), &status) != 0) return;
    if (S_ISREG(status.st_mode)) anchor_ = make_anchor(get());
    note_.reset(Note::take());
    if (!note_) return;
    note_->file = identity();
    note_->fd.store(get(), std::memory_order_release);
}

void UnsharedFd::NoteRelease::operator()(Note* note) const noexcept {
    note->fd.store(Note::k_free, std::memory_order_release);
}

void UnsharedFd::renew(LockedFile file) noexcept {
    abandon(); // the number is the program's, nobody's, or the new one's
    LockedFile::operator=(std::move(file));
    if (note_) note_->fd.store(get(), std::memory_order_release);
}

void UnsharedFd::reset() noexcept {
    if (is_held()) ::close(get());
    abandon(); // it stays known which file that was
    anchor_.reset();
    note_.reset();
}

void close_unshared_fds() noexcept {
    using Note = UnsharedFd::Note;
    for (auto* note = Note::s_first.load(std::memory_order_acquire); note != nullptr; note = note->next) {
        const int fd = note->fd.exchange(Note::k_free);
        if (fd >= 0 && FileIdentity::of(fd) == note->file) ::close(fd);
    }
}

namespace {

/// File systems that one machine alone has at a time. Any other may be shared.
constexpr std::array<std::uint32_t, 12> k_of_one_machine = {
    EXT4_SUPER_MAGIC,     XFS_SUPER_MAGIC,      BTRFS_SUPER_MAGIC,
    TMPFS_MAGIC,          RAMFS_MAGIC,          OVERLAYFS_SUPER_MAGIC,
    F2FS_SUPER_MAGIC,     0x2FC12FC1 /* ZFS */, 0xCA451A4E /* bcachefs */,
    0x3153464A /* JFS */, MSDOS_SUPER_MAGIC,    EXFAT_SUPER_MAGIC};

/// Null where it cannot be told.
std::uint32_t kind_of_system(int fd) noexcept {
    struct statfs system = {};
    return ::fstatfs(fd, &system) == 0 ? static_cast<std::uint32_t>(system.f_type) : 0;
}

} // namespace

Error refused(const std::filesystem::path& path, std::string_view why) {
    return make_error(ErrorCode::not_permitted, "{} is not used: {}", path.string(), why);
}

bool knows_no_such_call(int number) noexcept {
    return number == EINVAL || number == ENOSYS || number == EOPNOTSUPP;
}

bool is_private(const struct stat& status) noexcept {
    return status.st_uid == ::geteuid() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

bool lies_in_memory(int fd) noexcept {
    const auto kind = kind_of_system(fd);
    return kind == TMPFS_MAGIC || kind == RAMFS_MAGIC;
}

bool may_be_shared(int fd) noexcept {
    return std::find(k_of_one_machine.begin(), k_of_one_machine.end(), kind_of_system(fd)) ==
           k_of_one_machine.end();
}

bool lock_lasts(int fd) noexcept {
    return !may_be_shared(fd) && kind_of_system(fd) != OVERLAYFS_SUPER_MAGIC;
}

bool has_no_locks(int fd, int error) noexcept {
    // The last is NFS without its lock manager; elsewhere it is the kernel that lacks memory.
    return knows_no_such_call(error) || (error == ENOLCK && may_be_shared(fd));
}

} // namespace gpu_sleep::store
