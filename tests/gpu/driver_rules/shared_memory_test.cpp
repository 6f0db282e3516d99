// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that two processes share: what holds it and until when, how descriptors are told apart, and what a
// checkpoint leaves of it. The cases in which a process is lost end that process. That of a pool is also run
// under gpu-run.

#include "checkpointed.hpp"
#include "support/byte_lock.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>

using namespace gpu_sleep::driver_rules;

namespace {

/// What a process that shares memory is told to do; each is done with one or two driver calls.
enum class Deed : char {
    create = 'c',      ///< memory of the device, mapped, filled
    create_host = 'h', ///< memory of the host
    export_it = 'e',   ///< and keep the descriptor
    send = 's',        ///< the descriptor
    receive = 'r',     ///< one, and keep it
    close = 'x',       ///< the descriptor
    replace = 'n',     ///< the descriptor by another file
    import_it = 'i',   ///< and map
    let_go = 'l',      ///< unmap and release
    check = 'k',       ///< "y" if all words looked at are those of create
    change = 'f',      ///< other words
    check_change = 'F',
    event = 'v',       ///< made, interprocess; answers its handle
    open_event = 'w',  ///< by a handle
    record_late = 'R', ///< behind work that runs until let_run
    let_run = 'g',
    is_pending = 'q', ///< "y" if the event is not reached
    wait = 'W',       ///< in a stream, for the event
    allocate = 'a',   ///< plain memory; answers its handle
    open = 'o',       ///< by a handle
    make_pool = 'p',  ///< that can be exported, and export it
    import_pool = 'P',
    end_pool = 'd',
    point = 't', ///< answers what the memory is imported by
    point_at = 'T',
    check_plain = 'y', ///< and the next two as those of create, of plain memory, or of a pool
    check_plain_change = 'Y',
    fill_plain = 'z',
    free_late = 'L', ///< behind work that runs until let_run, and then changes it
    free_plain = 'X',
    finish = 'j', ///< all work
    take = 'b',   ///< memory of the pool
};

constexpr std::size_t k_bytes = Target::k_bytes;
constexpr std::uint32_t k_word = 0x1111;
constexpr std::uint32_t k_other_word = 0x2222;

/// One byte, with room for a descriptor beside it. Source: unix(7), SCM_RIGHTS.
struct WithDescriptor {
    char byte = 'f';
    iovec part{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr header{};
    WithDescriptor() {
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = control.data();
        header.msg_controllen = control.size();
    }
};

bool send_descriptor(int socket, int descriptor) {
    WithDescriptor message;
    cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    return ::sendmsg(socket, &message.header, MSG_NOSIGNAL) == 1;
}

int receive_descriptor(int socket) {
    WithDescriptor message;
    int descriptor = -1;
    if (::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) != 1) return -1;
    if (const cmsghdr* control = CMSG_FIRSTHDR(&message.header))
        std::memcpy(&descriptor, CMSG_DATA(control), sizeof descriptor);
    return descriptor;
}

template <class Handle>
std::string digits_of(const Handle& handle) {
    std::string text;
    for (const auto byte : handle.reserved) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
        text += digits;
    }
    return text;
}

template <class Handle>
Handle handle_of(const std::string& digits) {
    Handle handle{};
    REQUIRE(digits.size() >= 2 * sizeof handle.reserved);
    auto* next = reinterpret_cast<unsigned char*>(handle.reserved);
    for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
        *next++ = static_cast<unsigned char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
    return handle;
}

void* as_shareable(int descriptor) {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
}

CUresult export_memory(int& descriptor, CUmemGenericAllocationHandle handle) {
    return cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

// Returns the status of a call that fails.
#define RETURN_IF_FAILED(call)                                                                               \
    if (const CUresult status = (call); status != CUDA_SUCCESS) return status

/// A process that shares memory, from the inside.
class Sharer {
public:
    explicit Sharer(int socket)
        : socket_(socket), address_(reserve(k_bytes)), spin_(kernel("sim_spin_until")),
          stream_(make_stream()) {
        REQUIRE(cuMemHostAlloc(reinterpret_cast<void**>(&flag_), sizeof *flag_, 0) == CUDA_SUCCESS);
    }

    std::string obey(Deed deed, const std::string& argument) {
        switch (deed) {
        case Deed::create: return number(create_on({CU_MEM_LOCATION_TYPE_DEVICE, 0}));
        case Deed::create_host: return number(create_on({CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}));
        case Deed::export_it: return number(export_memory(descriptor_, handle_));
        case Deed::send: return yes(send_descriptor(socket_, descriptor_));
        case Deed::receive: return yes((descriptor_ = receive_descriptor(socket_)) >= 0);
        case Deed::close: return yes(::close(descriptor_) == 0);
        case Deed::replace: return yes(::dup2(STDERR_FILENO, descriptor_) == descriptor_);
        case Deed::import_it: return number(import_memory());
        case Deed::let_go: return number(let_go());
        case Deed::check: return yes(has(k_word));
        case Deed::change: return number(fill(k_other_word));
        case Deed::check_change: return yes(has(k_other_word));
        case Deed::event: return make_shared_event();
        case Deed::open_event:
            return number(cuIpcOpenEventHandle(&event_, handle_of<CUipcEventHandle>(argument)));
        case Deed::record_late: return number(record_late());
        case Deed::let_run: __atomic_store_n(flag_, 1U, __ATOMIC_RELEASE); return "y";
        case Deed::is_pending: return yes(cuEventQuery(event_) == CUDA_ERROR_NOT_READY);
        case Deed::wait: return number(wait());
        case Deed::allocate: return allocate_shared();
        case Deed::open:
            return number(cuIpcOpenMemHandle(&plain_, handle_of<CUipcMemHandle>(argument),
                                             CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        case Deed::make_pool: return number(export_pool());
        case Deed::import_pool:
            return number(cuMemPoolImportFromShareableHandle(&pool_, as_shareable(descriptor_),
                                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        case Deed::end_pool: return number(cuMemPoolDestroy(pool_));
        case Deed::point: return point();
        case Deed::point_at: {
            auto data = handle_of<CUmemPoolPtrExportData>(argument);
            return number(cuMemPoolImportPointer(&plain_, pool_, &data));
        }
        case Deed::check_plain: return yes(first_word(plain_) == k_word);
        case Deed::check_plain_change: return yes(first_word(plain_) == k_other_word);
        case Deed::fill_plain: return number(fill_plain());
        case Deed::free_late: return number(free_late());
        case Deed::free_plain: return number(cuMemFree(plain_));
        case Deed::finish: return number(cuStreamSynchronize(stream_));
        case Deed::take: return number(cuMemAllocFromPoolAsync(&plain_, k_granularity, pool_, stream_));
        }
        return "?";
    }

private:
    static std::string yes(bool right) { return right ? "y" : "n"; }
    static std::string number(CUresult status) { return std::to_string(status); }
    CUresult create_on(CUmemLocation location) {
        auto properties = properties_on(0);
        properties.location = location;
        CUmemAccessDesc access{};
        access.location = location;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        RETURN_IF_FAILED(cuMemCreate(&handle_, k_bytes, &properties, 0));
        RETURN_IF_FAILED(map());
        RETURN_IF_FAILED(cuMemSetAccess(address_, k_bytes, &access, 1));
        return fill(k_word);
    }
    CUresult import_memory() {
        RETURN_IF_FAILED(cuMemImportFromShareableHandle(&handle_, as_shareable(descriptor_),
                                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        return map();
    }
    CUresult let_go() const {
        RETURN_IF_FAILED(cuMemUnmap(address_, k_bytes));
        return cuMemRelease(handle_);
    }
    CUresult record_late() const {
        *flag_ = 0;
        RETURN_IF_FAILED(launch(spin_, stream_, flag_));
        return cuEventRecord(event_, stream_);
    }
    CUresult wait() const {
        RETURN_IF_FAILED(cuStreamWaitEvent(stream_, event_, 0));
        RETURN_IF_FAILED(cuStreamSynchronize(stream_));
        return cuEventQuery(event_);
    }
    CUresult map() const {
        RETURN_IF_FAILED(cuMemMap(address_, k_bytes, 0, handle_, 0));
        return grant(address_, k_bytes, 0);
    }
    /// A few words at the beginning and the end.
    CUresult fill(std::uint32_t word) const {
        for (const auto at : {address_, address_ + k_bytes - k_shown})
            RETURN_IF_FAILED(cuMemsetD32(at, word, k_shown / 4));
        return cuCtxSynchronize();
    }
    bool has(std::uint32_t word) const {
        return first_word(address_) == word && first_word(address_ + k_bytes - 4) == word;
    }
    std::string make_shared_event() {
        CUipcEventHandle handle{};
        event_ = make_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
        REQUIRE(cuIpcGetEventHandle(&handle, event_) == CUDA_SUCCESS);
        return digits_of(handle);
    }
    std::string allocate_shared() {
        CUipcMemHandle handle{};
        plain_ = gpu_sleep::driver_testing::allocate(k_granularity);
        REQUIRE(cuIpcGetMemHandle(&handle, plain_) == CUDA_SUCCESS);
        return digits_of(handle);
    }
    std::string point() const {
        CUmemPoolPtrExportData data{};
        REQUIRE(cuMemPoolExportPointer(&data, plain_) == CUDA_SUCCESS);
        return digits_of(data);
    }
    CUresult fill_plain() const {
        RETURN_IF_FAILED(cuMemsetD32(plain_, k_word, k_granularity / 4));
        return cuCtxSynchronize();
    }
    CUresult free_late() const {
        *flag_ = 0;
        RETURN_IF_FAILED(launch(spin_, stream_, flag_));
        RETURN_IF_FAILED(cuMemsetD32Async(plain_, k_other_word, k_granularity / 4, stream_));
        return cuMemFreeAsync(plain_, stream_);
    }
    CUresult export_pool() {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        RETURN_IF_FAILED(cuMemPoolCreate(&pool_, &properties));
        RETURN_IF_FAILED(cuMemAllocFromPoolAsync(&plain_, k_granularity, pool_, stream_));
        RETURN_IF_FAILED(cuStreamSynchronize(stream_));
        return cuMemPoolExportToShareableHandle(&descriptor_, pool_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                0);
    }

    static constexpr std::size_t k_shown = 4096;

    int socket_;
    CUdeviceptr address_;
    CUfunction spin_;
    CUstream stream_;
    std::uint32_t* flag_ = nullptr;
    CUmemGenericAllocationHandle handle_ = 0;
    int descriptor_ = -1;
    CUevent event_ = nullptr;
    CUdeviceptr plain_ = 0;
    CUmemoryPool pool_ = nullptr;
};

} // namespace

// It is killed by its parent.
TEST_CASE("child: shares memory", "[.child]") {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuCtxPushCurrent(retain_primary(0)) == CUDA_SUCCESS);
    auto& sharer = *new Sharer(std::atoi(std::getenv("SIM_TEST_SOCKET")));
    say_ready();
    for (std::string line; std::getline(std::cin, line);)
        std::cout << sharer.obey(static_cast<Deed>(line.front()), line.substr(1)) << std::endl;
    ::_exit(1);
}

namespace {

/// The same process, as the test sees it.
class SharingProcess {
public:
    explicit SharingProcess(int socket)
        : run_("child: shares memory", {"SIM_TEST_SOCKET=" + std::to_string(socket)}) {
        REQUIRE(run_.is_ready());
    }

    std::string ask(Deed deed, const std::string& argument = {}) {
        run_.send(static_cast<char>(deed) + argument);
        return run_.has_output_within(gpu_sleep::test::k_patience) ? run_.read_line() : "no answer";
    }
    /// Does all of these.
    void tell(std::initializer_list<Deed> deeds) {
        for (const auto deed : deeds) {
            INFO("deed " << static_cast<char>(deed));
            const auto answer = ask(deed);
            REQUIRE((answer == "0" || answer == "y"));
        }
    }

    [[nodiscard]] CUresult lock() const {
        CUcheckpointLockArgs args{};
        args.timeoutMs = 10'000;
        return cuCheckpointProcessLock(run_.pid(), &args);
    }
    [[nodiscard]] CUresult checkpoint() const { return cuCheckpointProcessCheckpoint(run_.pid(), nullptr); }
    [[nodiscard]] CUresult restore() const { return cuCheckpointProcessRestore(run_.pid(), nullptr); }
    [[nodiscard]] CUresult unlock() const { return cuCheckpointProcessUnlock(run_.pid(), nullptr); }
    void kill() { run_.end_with(SIGKILL); }

    void put_away() const {
        REQUIRE(lock() == CUDA_SUCCESS);
        REQUIRE(checkpoint() == CUDA_SUCCESS);
    }
    /// Its restore fails so, and leaves it checkpointed for good.
    void check_lost(CUresult status) const {
        CHECK(restore() == status);
        CUprocessState state{};
        CHECK(cuCheckpointProcessGetState(run_.pid(), &state) == CUDA_SUCCESS);
        CHECK(state == CU_PROCESS_STATE_CHECKPOINTED);
        CHECK(unlock() == CUDA_ERROR_ILLEGAL_STATE);
    }

private:
    OtherRun run_;
};

/// An importer and an exporter. The importer is there first, so that the exporter can end.
class Pair {
public:
    Pair() {
        share_devices();
        session_.emplace();
        REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets_.data()) == 0);
        before_ = free_bytes();
        importer.emplace(sockets_[1]);
        before_exporter_ = free_bytes();
        exporter.emplace(sockets_[0]);
        awake_ = free_bytes();
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;
    ~Pair() {
        for (const int end : sockets_) ::close(end);
    }

    /// The exporter creates and exports, the importer has the descriptor.
    void hand_over(Deed creation = Deed::create) {
        exporter->tell({creation, Deed::export_it, Deed::send});
        importer->tell({Deed::receive});
    }
    /// And maps the memory.
    void share(Deed creation = Deed::create) {
        hand_over(creation);
        importer->tell({Deed::import_it, Deed::check});
    }
    void put_both_away() {
        for (auto* process : {&*exporter, &*importer}) REQUIRE(process->lock() == CUDA_SUCCESS);
        for (auto* process : {&*exporter, &*importer}) REQUIRE(process->checkpoint() == CUDA_SUCCESS);
    }
    void bring_both_back() {
        for (auto* process : {&*exporter, &*importer}) REQUIRE(process->restore() == CUDA_SUCCESS);
        for (auto* process : {&*exporter, &*importer}) REQUIRE(process->unlock() == CUDA_SUCCESS);
    }

    /// Whether so many pieces of k_bytes are in use beside the contexts, at once or soon.
    [[nodiscard]] bool holds(std::size_t pieces) const { return holds(awake_, pieces); }
    [[nodiscard]] bool holds_while_checkpointed(std::size_t pieces) const { return holds(before_, pieces); }
    [[nodiscard]] bool holds_without_exporter(std::size_t pieces) const {
        return holds(before_exporter_, pieces);
    }

    std::optional<SharingProcess> importer;
    std::optional<SharingProcess> exporter;

private:
    static bool holds(std::size_t before, std::size_t pieces) {
        const auto are_held = [&] {
            const auto free = free_bytes();
            return (before + k_bytes / 2 - std::min(free, before)) / k_bytes == pieces;
        };
        return gpu_sleep::test::becomes_true(are_held, std::chrono::seconds(5));
    }

    std::optional<Session> session_; ///< made once the devices are shared
    std::array<int, 2> sockets_{};
    std::size_t before_ = 0;
    std::size_t before_exporter_ = 0;
    std::size_t awake_ = 0;
};

} // namespace

TEST_CASE("Driver: an open descriptor alone holds shared memory, and the last one frees it",
          "[driver_rules]") {
    Pair pair;
    pair.share();
    CHECK(pair.holds(1));
    pair.importer->tell({Deed::let_go});
    pair.exporter->tell({Deed::let_go});
    CHECK(pair.holds(1));
    pair.exporter->tell({Deed::close});
    CHECK(pair.holds(1));
    pair.importer->tell({Deed::import_it, Deed::check, Deed::let_go, Deed::close});
    CHECK(pair.holds(0));
}

TEST_CASE("Driver: a descriptor on its way in a socket holds shared memory", "[driver_rules]") {
    Pair pair;
    pair.exporter->tell({Deed::create, Deed::export_it, Deed::send, Deed::close, Deed::let_go});
    CHECK(pair.holds(1));
    pair.importer->tell({Deed::receive, Deed::import_it, Deed::check, Deed::let_go, Deed::close});
    CHECK(pair.holds(0));
}

TEST_CASE("Driver: a mapping holds shared memory, whichever process lets go first", "[driver_rules]") {
    Pair pair;
    const bool exporter_first = GENERATE(true, false);
    pair.share();
    pair.exporter->tell({Deed::close});
    pair.importer->tell({Deed::close});
    auto& first = exporter_first ? *pair.exporter : *pair.importer;
    auto& last = exporter_first ? *pair.importer : *pair.exporter;
    first.tell({Deed::let_go});
    CHECK(pair.holds(1));
    last.tell({Deed::check, Deed::let_go});
    CHECK(pair.holds(0));
}

TEST_CASE("Driver: shared memory outlives the exporter that is killed, until its importer lets go",
          "[driver_rules]") {
    Pair pair;
    pair.share();
    pair.importer->tell({Deed::close});
    pair.exporter->kill();
    CHECK(pair.holds_without_exporter(1));
    pair.importer->tell({Deed::check, Deed::let_go});
    CHECK(pair.holds_without_exporter(0));
}

TEST_CASE("Driver: a descriptor whose exporter was killed can be imported for the first time",
          "[driver_rules]") {
    Pair pair;
    pair.hand_over();
    pair.exporter->kill();
    CHECK(pair.holds_without_exporter(1));
    pair.importer->tell({Deed::import_it, Deed::check, Deed::let_go, Deed::close});
    CHECK(pair.holds_without_exporter(0));
}

TEST_CASE_METHOD(OnRange,
                 "Driver: an exported descriptor can be marked by a lock, until its last copy is closed",
                 "[driver_rules]") {
    constexpr off_t k_at = 0x1234'5678'9abc;
    int one = -1;
    int other = -1;
    REQUIRE(export_memory(one, range.handle()) == CUDA_SUCCESS);
    REQUIRE(export_memory(other, range.handle()) == CUDA_SUCCESS);
    auto lock = gpu_sleep::test::byte_lock(F_RDLCK, k_at);
    REQUIRE(::fcntl(one, F_OFD_SETLK, &lock) == 0);
    REQUIRE(::fcntl(one, F_SETOWN, ::getpid()) == 0); // a mark that other processes see
    const int duplicate = ::dup(one);
    CHECK(::fcntl(duplicate, F_GETOWN) == ::getpid());
    CHECK(::fcntl(other, F_GETOWN) == 0);
    std::ifstream info("/proc/self/fdinfo/" + std::to_string(duplicate));
    const std::string text(std::istreambuf_iterator<char>(info), {});
    CHECK(text.find("OFDLCK") != std::string::npos);
    CHECK(text.find(' ' + std::to_string(k_at) + ' ' + std::to_string(k_at)) != std::string::npos);

    const auto link = "/proc/self/fd/" + std::to_string(one);
    const int file = ::open(link.c_str(), O_RDWR | O_CLOEXEC); // the same device, and no memory
    REQUIRE(file >= 0);
    const auto is_marked = [&] {
        auto found = gpu_sleep::test::byte_lock(F_WRLCK, k_at);
        REQUIRE(::fcntl(file, F_OFD_GETLK, &found) == 0);
        return found.l_type != F_UNLCK;
    };
    CHECK(is_marked());
    ::close(one);
    CHECK(is_marked());
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
    REQUIRE(send_descriptor(ends[0], duplicate));
    ::close(duplicate);
    CHECK(is_marked());
    ::close(receive_descriptor(ends[1]));
    CHECK_FALSE(is_marked());
    for (const int descriptor : {other, file, ends[0], ends[1]}) ::close(descriptor);
}

TEST_CASE("Driver: memory that was imported cannot be exported", "[driver_rules]") {
    Pair pair;
    pair.share();
    CHECK(pair.importer->ask(Deed::export_it) == std::to_string(CUDA_ERROR_INVALID_VALUE));
    pair.importer->tell({Deed::check});
}

TEST_CASE("Driver: descriptors of shared memory stay right over a checkpoint of both, and hold it meanwhile",
          "[driver_rules]") {
    Pair pair;
    pair.share();
    pair.importer->tell({Deed::let_go});
    pair.exporter->tell({Deed::let_go});
    pair.put_both_away();
    CHECK(pair.holds_while_checkpointed(1));
    pair.bring_both_back();
    pair.exporter->tell({Deed::import_it, Deed::check});
    pair.importer->tell({Deed::import_it, Deed::check});
}

TEST_CASE("Driver: with its descriptors replaced, nothing of shared memory is left in a checkpoint",
          "[driver_rules]") {
    Pair pair;
    pair.share();
    pair.importer->tell({Deed::let_go, Deed::replace});
    pair.exporter->tell({Deed::let_go, Deed::replace});
    pair.put_both_away();
    CHECK(pair.holds_while_checkpointed(0));
    pair.bring_both_back();
    pair.share(); // at the same addresses
    pair.exporter->tell({Deed::change});
    pair.importer->tell({Deed::check_change});
    CHECK(pair.holds(1));
}

TEST_CASE("Driver: a process that was checkpointed with an import mapped is lost", "[driver_rules]") {
    Pair pair;
    pair.share();
    pair.importer->put_away();
    pair.importer->check_lost(CUDA_ERROR_NOT_SUPPORTED);
    pair.exporter->tell({Deed::check});
}

TEST_CASE("Driver: an exporter that was restored has its shared memory for itself", "[driver_rules]") {
    Pair pair;
    pair.share();
    pair.exporter->tell({Deed::close});
    pair.importer->tell({Deed::close});
    pair.exporter->put_away();
    REQUIRE(pair.exporter->restore() == CUDA_SUCCESS);
    REQUIRE(pair.exporter->unlock() == CUDA_SUCCESS);
    pair.exporter->tell({Deed::check, Deed::change, Deed::check_change});
    pair.importer->tell({Deed::check});
    CHECK(pair.holds(2));
}

TEST_CASE("Driver: a process that was checkpointed with exported host memory mapped is lost",
          "[driver_rules]") {
    Pair pair;
    pair.share(Deed::create_host);
    pair.importer->tell({Deed::let_go});
    pair.put_both_away();
    pair.exporter->check_lost(CUDA_ERROR_UNKNOWN);
    CHECK(pair.importer->restore() == CUDA_SUCCESS);
}

TEST_CASE("Driver: interprocess events stand over a checkpoint of both, and synchronise them",
          "[driver_rules]") {
    Pair pair;
    REQUIRE(pair.importer->ask(Deed::open_event, pair.exporter->ask(Deed::event)) == "0");
    pair.put_both_away();
    CHECK(pair.holds_while_checkpointed(0));
    pair.bring_both_back();
    for (const bool exporter_records : {true, false}) {
        auto& one = exporter_records ? *pair.exporter : *pair.importer;
        auto& other = exporter_records ? *pair.importer : *pair.exporter;
        one.tell({Deed::record_late});
        other.tell({Deed::is_pending});
        one.tell({Deed::let_run});
        other.tell({Deed::wait});
    }
}

TEST_CASE("Driver: a process that was checkpointed with memory open by legacy IPC is lost",
          "[driver_rules]") {
    Pair pair;
    REQUIRE(pair.importer->ask(Deed::open, pair.exporter->ask(Deed::allocate)) == "0");
    pair.put_both_away();
    CHECK(pair.exporter->restore() == CUDA_SUCCESS);
    pair.importer->check_lost(CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Driver: a pool that another process imports is one memory, which each frees in its own order",
          "[driver_rules]") {
    Pair pair;
    pair.exporter->tell({Deed::make_pool, Deed::send, Deed::close, Deed::fill_plain});
    pair.importer->tell({Deed::receive, Deed::import_pool, Deed::close});
    CHECK(pair.importer->ask(Deed::take) != "0");
    REQUIRE(pair.importer->ask(Deed::point_at, pair.exporter->ask(Deed::point)) == "0");
    pair.importer->tell({Deed::check_plain, Deed::free_late});
    pair.exporter->tell({Deed::check_plain});
    pair.importer->tell({Deed::let_run, Deed::finish});
    pair.exporter->tell({Deed::check_plain_change, Deed::fill_plain});
    REQUIRE(pair.importer->ask(Deed::point_at, pair.exporter->ask(Deed::point)) == "0");
    pair.importer->tell({Deed::check_plain, Deed::free_plain, Deed::end_pool});
    pair.exporter->tell({Deed::check_plain, Deed::free_plain, Deed::end_pool});
}

TEST_CASE("Driver: a process that was checkpointed with an imported pool is lost", "[driver_rules]") {
    Pair pair;
    pair.exporter->tell({Deed::make_pool, Deed::send, Deed::close});
    pair.importer->tell({Deed::receive, Deed::import_pool, Deed::close});
    pair.put_both_away();
    CHECK(pair.exporter->restore() == CUDA_SUCCESS);
    pair.importer->check_lost(CUDA_ERROR_OPERATING_SYSTEM);
}
