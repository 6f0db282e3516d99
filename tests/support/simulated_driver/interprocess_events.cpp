// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuIpc*EventHandle. A handle names the event's memory file in the process that made it, which must live
// while others open it.

#include "support/simulated_driver/interprocess_events.hpp"

#include "support/simulated_driver/contexts.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <string>

namespace gpu_sleep::sim {
namespace {

constexpr std::uint64_t k_event_magic = 0x3131435645534753; // "SGSEVC11"

/// What the bytes of a handle say.
struct EventTicket {
    std::uint64_t magic = k_event_magic;
    pid_t process = 0;
    int fd = -1; ///< in that process
    ino_t inode = 0;
};
static_assert(sizeof(EventTicket) <= sizeof(CUipcEventHandle));

ino_t inode_of(const UniqueFd& file) {
    struct stat status {};
    return file && ::fstat(file.get(), &status) == 0 ? status.st_ino : 0;
}

} // namespace

std::shared_ptr<SharedEvent> SharedEvent::map(UniqueFd file) {
    void* const memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) return nullptr;
    return std::shared_ptr<SharedEvent>(new SharedEvent(std::move(file), static_cast<Page*>(memory)));
}

std::shared_ptr<SharedEvent> SharedEvent::create() {
    UniqueFd file(::memfd_create("gpu-sleep-sim-event", MFD_CLOEXEC));
    return file && ::ftruncate(file.get(), sizeof(Page)) == 0 ? map(std::move(file)) : nullptr;
}

std::shared_ptr<SharedEvent> SharedEvent::open(const CUipcEventHandle& handle) {
    EventTicket ticket;
    std::memcpy(&ticket, handle.reserved, sizeof ticket);
    if (ticket.magic != k_event_magic) return nullptr;
    const auto path = "/proc/" + std::to_string(ticket.process) + "/fd/" + std::to_string(ticket.fd);
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    return file && inode_of(file) == ticket.inode ? map(std::move(file)) : nullptr;
}

CUipcEventHandle SharedEvent::handle() const {
    const EventTicket ticket{k_event_magic, ::getpid(), file_.get(), inode_of(file_)};
    CUipcEventHandle result{};
    std::memcpy(result.reserved, &ticket, sizeof ticket);
    return result;
}

SharedEvent::~SharedEvent() {
    ::munmap(page_, sizeof(Page));
}

std::uint64_t SharedEvent::record() {
    page_->recorder = ::getpid();
    return ++page_->recorded;
}

void SharedEvent::complete(std::uint64_t number) {
    auto completed = page_->completed.load();
    while (completed < number && !page_->completed.compare_exchange_weak(completed, number)) {
    }
}

bool SharedEvent::reached(std::uint64_t number) {
    return page_->completed >= number || ::kill(page_->recorder, 0) != 0;
}

} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 4010) cuIpcGetEventHandle(Call& c, CUipcEventHandle* handle, CUevent event) {
    SIM_FIND(found, c.driver.events.find(event), CUDA_ERROR_INVALID_HANDLE);
    if (!handle || !found->shared) return CUDA_ERROR_INVALID_VALUE;
    *handle = found->shared->handle();
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4010)
cuIpcOpenEventHandle(Call& c, Context& context, CUevent* event, CUipcEventHandle handle) {
    SIM_FIND(shared, event ? SharedEvent::open(handle) : nullptr, CUDA_ERROR_INVALID_VALUE);
    const auto opened = std::make_shared<Event>();
    opened->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    opened->context = context.owner;
    opened->shared = shared;
    *event = c.driver.events.insert(opened);
    return CUDA_SUCCESS;
}
