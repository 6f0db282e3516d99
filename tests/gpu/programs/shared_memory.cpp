// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program that shares virtual memory and a pool with a process of its own, by descriptors through
// a socket; both work at it in turns, with memory of their own besides. It needs no kernels.

#include "checked.hpp"
#include "program.hpp"

#include <cuda.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace {

constexpr std::size_t k_mib = 1 << 20;
constexpr std::size_t k_shared_bytes = 32 * k_mib;
constexpr std::size_t k_pool_bytes = 4 * k_mib;

/// A byte, and a descriptor with it. Source: unix(7), SCM_RIGHTS.
struct Message {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
    msghdr header{};

    Message() {
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = room.data();
        header.msg_controllen = room.size();
    }
};

void send_descriptor(int socket, int descriptor) {
    Message message;
    auto* const control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    checked(::sendmsg(socket, &message.header, 0), "sendmsg");
}

int receive_descriptor(int socket) {
    Message message;
    checked(::recvmsg(socket, &message.header, 0), "recvmsg");
    const auto* const control = CMSG_FIRSTHDR(&message.header);
    int descriptor = -1;
    if (control) std::memcpy(&descriptor, CMSG_DATA(control), sizeof descriptor);
    return checked(descriptor, "recvmsg");
}

void* as_shareable(int descriptor) {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
}

class Side {
public:
    Side(double scale, unsigned seed) {
        CHECKED(cuInit(0));
        CUcontext context = nullptr;
        CHECKED(cuDevicePrimaryCtxRetain(&context, 0));
        CHECKED(cuCtxSetCurrent(context));
        for (std::size_t i = 0; i < own_.size(); ++i) {
            auto& [address, bytes] = own_[i];
            bytes = (static_cast<std::size_t>(40 * scale) + 16) * (i + 1) * k_mib;
            CHECKED(cuMemAlloc(&address, bytes));
            CHECKED(cuMemsetD32(address, seed * 2654435761U + static_cast<unsigned>(i), bytes / 4));
        }
    }

    int export_shared() {
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemGenericAllocationHandle handle = 0;
        CHECKED(cuMemCreate(&handle, k_shared_bytes, &properties, 0));
        map(handle);
        CHECKED(cuMemsetD32(shared_, 0x7E57ED01U, k_shared_bytes / 4));
        CHECKED(cuCtxSynchronize());
        int descriptor = -1;
        CHECKED(
            cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        CHECKED(cuMemRelease(handle)); // the mapping keeps it
        return descriptor;
    }

    void import_shared(int descriptor) {
        CUmemGenericAllocationHandle handle = 0;
        CHECKED(cuMemImportFromShareableHandle(&handle, as_shareable(descriptor),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        ::close(descriptor);
        map(handle);
        CHECKED(cuMemRelease(handle));
    }

    void export_pool(int socket) {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        CUmemoryPool pool = nullptr;
        CHECKED(cuMemPoolCreate(&pool, &properties));
        CHECKED(cuMemAllocFromPoolAsync(&pooled_, k_pool_bytes, pool, nullptr));
        CHECKED(cuMemsetD32(pooled_, 0x7E57ED02U, k_pool_bytes / 4));
        CHECKED(cuCtxSynchronize());
        int descriptor = -1;
        CHECKED(
            cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        send_descriptor(socket, descriptor);
        ::close(descriptor);
        CUmemPoolPtrExportData pointer{};
        CHECKED(cuMemPoolExportPointer(&pointer, pooled_));
        checked(::write(socket, &pointer, sizeof pointer), "write");
    }

    void import_pool(int socket) {
        const int descriptor = receive_descriptor(socket);
        CUmemoryPool pool = nullptr;
        CHECKED(cuMemPoolImportFromShareableHandle(&pool, as_shareable(descriptor),
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        ::close(descriptor);
        CUmemPoolPtrExportData pointer{};
        if (::recv(socket, &pointer, sizeof pointer, MSG_WAITALL) != sizeof pointer) std::exit(1);
        CHECKED(cuMemPoolImportPointer(&pooled_, pool, &pointer));
    }

    /// Moves words between what is shared and what is not, so that the results of each side depend on all
    /// steps of both.
    void step(unsigned number) {
        const auto part = k_shared_bytes / 8;
        const auto& own = own_[number % own_.size()];
        const auto from = number * 7 % 8 * part;
        const auto to = (number * 5 + 3) % 8 * part;
        CHECKED(cuMemcpyDtoD(own.address + number % 3 * part, shared_ + from, part));
        CHECKED(cuMemcpyDtoD(shared_ + to, own_[(number + 1) % own_.size()].address, part));
        CHECKED(cuMemcpyDtoD(shared_ + from, pooled_, k_pool_bytes));
        CHECKED(cuMemcpyDtoD(pooled_, shared_ + to, k_pool_bytes));
        CHECKED(cuMemsetD32(shared_ + to + number % 1000 * 4, number * 40503U + 1, 17));
        CHECKED(cuMemsetD32(pooled_ + number % 1000 * 4, number * 69069U + 1, 13));
        CHECKED(cuCtxSynchronize());
    }

    void add_to(Digest& digest, bool with_shared) {
        if (with_shared) add(digest, shared_, k_shared_bytes);
        if (with_shared) add(digest, pooled_, k_pool_bytes);
        for (const auto& own : own_) add(digest, own.address, own.bytes);
    }

private:
    struct Buffer {
        CUdeviceptr address = 0;
        std::size_t bytes = 0;
    };

    void map(CUmemGenericAllocationHandle handle) {
        CUmemAccessDesc access{};
        access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        CHECKED(cuMemAddressReserve(&shared_, k_shared_bytes, 0, 0, 0));
        CHECKED(cuMemMap(shared_, k_shared_bytes, 0, handle, 0));
        CHECKED(cuMemSetAccess(shared_, k_shared_bytes, &access, 1));
    }

    static void add(Digest& digest, CUdeviceptr address, std::size_t bytes) {
        std::vector<unsigned char> host(bytes);
        CHECKED(cuMemcpyDtoH(host.data(), address, bytes));
        digest.add(host.data(), bytes);
    }

    std::array<Buffer, 3> own_;
    CUdeviceptr shared_ = 0;
    CUdeviceptr pooled_ = 0;
};

/// Takes its turn for each number that comes, and answers it; at the end the digest of what it has.
int run_partner(int socket, double scale) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Side side(scale, 2);
    side.import_shared(receive_descriptor(socket));
    side.import_pool(socket);
    for (int number = 0; ::read(socket, &number, sizeof number) == sizeof number && number >= 0;) {
        side.step(static_cast<unsigned>(number) * 2 + 1);
        checked(::write(socket, &number, sizeof number), "write");
    }
    Digest digest;
    side.add_to(digest, false);
    const auto text = digest.finish();
    checked(::write(socket, text.data(), text.size()), "write");
    return 0;
}

} // namespace

int main(int count, char** words) {
    const ProgramOptions options(count, words);
    std::array<int, 2> ends{};
    checked(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), "socketpair");
    const auto partner = checked(::fork(), "fork"); // before CUDA, which no child inherits
    if (partner == 0) {
        ::close(ends[0]);
        return run_partner(ends[1], options.scale);
    }
    ::close(ends[1]);
    Side side(options.scale, 1);
    const int descriptor = side.export_shared();
    send_descriptor(ends[0], descriptor);
    ::close(descriptor);
    side.export_pool(ends[0]);
    run_paced(options, [&](int number) {
        side.step(static_cast<unsigned>(number) * 2);
        checked(::write(ends[0], &number, sizeof number), "write");
        if (::read(ends[0], &number, sizeof number) != sizeof number) std::exit(1);
    });
    const int done = -1;
    checked(::write(ends[0], &done, sizeof done), "write");
    std::array<char, 16> others{}; // a digest
    if (::recv(ends[0], others.data(), others.size(), MSG_WAITALL) != static_cast<ssize_t>(others.size()))
        return 1;
    Digest digest;
    digest.add(others.data(), others.size());
    side.add_to(digest, true);
    std::printf("%s\n", digest.finish().c_str());
    return ::waitpid(partner, nullptr, 0) == partner ? 0 : 1;
}
