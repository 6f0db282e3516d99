// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program that shares memory with a process of its own for a moment, again and again, by handles
// of CUDA IPC. The other opens the memory and an event, works, and closes both, twice. It needs no kernels.

#include "checked.hpp"
#include "program.hpp"

#include <cuda.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

namespace {

constexpr std::size_t k_shared_bytes = std::size_t{8} << 20;

struct Handles {
    CUipcMemHandle memory;
    CUipcEventHandle event;
};

/// The memory that a process has besides, in pieces of what is shared.
class Side {
public:
    Side(double scale, unsigned seed) : pieces_(static_cast<std::size_t>(10 * scale) + 4) {
        CHECKED(cuInit(0));
        CUcontext context = nullptr;
        CHECKED(cuDevicePrimaryCtxRetain(&context, 0));
        CHECKED(cuCtxSetCurrent(context));
        CHECKED(cuMemAlloc(&own_, pieces_ * k_shared_bytes));
        for (std::size_t i = 0; i < pieces_; ++i)
            CHECKED(cuMemsetD32(piece(i), seed * 2654435761U + static_cast<unsigned>(i), k_shared_bytes / 4));
    }

    /// Has the other side work at what it gives it.
    void give(unsigned number, int socket) {
        CUdeviceptr shared = 0;
        CUevent event = nullptr;
        CHECKED(cuMemAlloc(&shared, k_shared_bytes));
        CHECKED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
        CHECKED(cuMemcpyDtoDAsync(shared, piece(number), k_shared_bytes, nullptr));
        CHECKED(cuEventRecord(event, nullptr));
        Handles handles{};
        CHECKED(cuIpcGetMemHandle(&handles.memory, shared));
        CHECKED(cuIpcGetEventHandle(&handles.event, event));
        checked(::write(socket, &handles, sizeof handles), "write");
        if (char done = 0; ::read(socket, &done, 1) != 1) std::exit(1);
        CHECKED(cuMemcpyDtoDAsync(piece(number + 1), shared, k_shared_bytes, nullptr));
        CHECKED(cuCtxSynchronize());
        CHECKED(cuEventDestroy(event));
        CHECKED(cuMemFree(shared));
    }

    void take(unsigned number, const Handles& handles) {
        CUdeviceptr shared = 0;
        CUevent event = nullptr;
        CHECKED(cuIpcOpenMemHandle(&shared, handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        CHECKED(cuIpcOpenEventHandle(&event, handles.event));
        CHECKED(cuStreamWaitEvent(nullptr, event, 0));
        CHECKED(cuMemcpyDtoDAsync(piece(number), shared, k_shared_bytes, nullptr));
        CHECKED(cuMemsetD32Async(shared + number % 1000 * 4, number * 40503U + 1, 17, nullptr));
        CHECKED(cuCtxSynchronize());
        CHECKED(cuEventDestroy(event));
        CHECKED(cuIpcCloseMemHandle(shared));
    }

    std::string digest(const std::string& others = {}) const {
        std::vector<unsigned char> host(pieces_ * k_shared_bytes);
        CHECKED(cuMemcpyDtoH(host.data(), own_, host.size()));
        Digest digest;
        digest.add(host.data(), host.size());
        digest.add(others.data(), others.size());
        return digest.finish();
    }

private:
    CUdeviceptr piece(std::size_t number) const { return own_ + number % pieces_ * k_shared_bytes; }

    std::size_t pieces_;
    CUdeviceptr own_ = 0;
};

int run_partner(int socket, const ProgramOptions& options) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Side side(options.scale, 2);
    Handles handles{};
    for (unsigned number = 0; ::recv(socket, &handles, sizeof handles, MSG_WAITALL) == sizeof handles;
         number += 2) {
        side.take(number, handles);
        std::this_thread::sleep_for(shortest_step(options) / 2);
        side.take(number + 1, handles);
        checked(::write(socket, "", 1), "write");
    }
    checked(::write(socket, side.digest().data(), 16), "write");
    return 0;
}

} // namespace

int main(int count, char** words) {
    const ProgramOptions options(count, words);
    std::array<int, 2> ends{};
    checked(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), "socketpair");
    const auto partner = checked(::fork(), "fork"); // before CUDA, which no child inherits
    ::close(ends[partner == 0 ? 0 : 1]);
    if (partner == 0) return run_partner(ends[1], options);
    Side side(options.scale, 1);
    run_paced(options, [&](int number) { side.give(static_cast<unsigned>(number), ends[0]); });
    checked(::shutdown(ends[0], SHUT_WR), "shutdown");
    std::string others(16, '\0'); // a digest
    if (::recv(ends[0], others.data(), others.size(), MSG_WAITALL) != 16) return 1;
    std::printf("%s\n", side.digest(others).c_str());
    return 0;
}
