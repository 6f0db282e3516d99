// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The state of the simulated driver, and the objects that its handles name.

#pragma once

#include "support/simulated_driver/address_space.hpp"
#include "support/simulated_driver/entry_points.hpp"
#include "support/simulated_driver/handle_table.hpp"
#include "support/simulated_driver/host_memory.hpp"
#include "support/simulated_driver/physical_memory.hpp"
#include "support/simulated_driver/stream.hpp"

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpu_sleep::sim {

/// A CUDA context. Guarded by the driver's lock, but for its error.
class Context {
public:
    Context(CUcontext its_handle, int its_device, unsigned its_flags, std::uint64_t its_id, bool is_primary)
        : handle(its_handle), device(its_device), id(its_id), primary(is_primary), flags(its_flags) {}

    /// Makes `status` what every later call in this context returns.
    void fail(CUresult status) noexcept {
        auto none = CUDA_SUCCESS;
        error_.compare_exchange_strong(none, status);
    }
    [[nodiscard]] CUresult error() const noexcept { return error_; }
    [[nodiscard]] Accessor accessor() const noexcept { return {device, peers}; }

    const CUcontext handle;
    const int device;
    const std::uint64_t id;
    const bool primary;
    const Context* owner = this; ///< of the memory that is allocated in it: the primary one of a green one
    unsigned flags;
    unsigned made_streams = 0; ///< that are not destroyed; several share what settings().stream_bytes says
    std::uint32_t peers = 0;   ///< devices whose plain allocations this one may access, one bit each
    std::shared_ptr<Stream> legacy;                              ///< the default stream; made when first used
    std::unordered_map<int, std::shared_ptr<Stream>> per_thread; ///< default streams of threads, by thread id
    std::vector<std::shared_ptr<Stream>> streams; ///< all of them; destroyed ones until they are done
    std::vector<std::shared_ptr<Context>>
        greens; ///< green ones of this, a primary one; ended ones too, for their work goes on

private:
    std::atomic<CUresult> error_{CUDA_SUCCESS};
};

struct GreenContext {
    std::shared_ptr<Context> context;
};

struct PrimaryContext {
    std::shared_ptr<Context> active; ///< null while nobody retains it, and from a reset to the next retain
    unsigned references = 0;
    unsigned flags = 0;
};

/// What a stream's captured work knows to have come before it: a count of nodes for each stream of the
/// capture.
using CaptureClock = std::map<const Stream*, std::size_t>;

class SharedEvent;

struct Event {
    unsigned flags = 0;
    const Context* context = nullptr;
    std::vector<Ticket> tickets; ///< what the last recording waits for; none if it never was recorded
    std::shared_ptr<std::atomic<std::int64_t>>
        stamp;                      ///< when that was reached, in nanoseconds; null: not timed
    std::weak_ptr<Capture> capture; ///< the capture that it was last recorded in
    bool captured = false;
    CaptureClock clock;
    std::shared_ptr<SharedEvent> shared; ///< of an interprocess one
};

struct Kernel;
class Work;

struct Module {
    const Context* context = nullptr;                         ///< null for a library, which belongs to none
    std::unordered_map<std::string, std::uint64_t> functions; ///< handles of the functions asked for
};

struct Function {
    std::shared_ptr<const Kernel> kernel;
    CUmodule module = nullptr; ///< null for a kernel of a library
    const Context* context = nullptr;
};

struct Graph {
    struct Node {
        CUgraphNode handle;
        std::shared_ptr<const Work> work;
    };
    std::vector<std::shared_ptr<Node>> nodes; ///< in an order that every dependency respects
};

struct GraphExec {
    std::shared_ptr<const Work> work;
    std::weak_ptr<const Graph> graph; ///< of which it was made
    const Context* context = nullptr;
};

/// A capture under way.
struct Capture {
    std::uint64_t id = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    int thread = 0;
    const Stream* origin = nullptr;
    const Context* context = nullptr;
    bool broken = false;
    CUgraph graph = nullptr;
    std::map<std::shared_ptr<Stream>, CaptureClock> streams; ///< those taking part
};

struct Allocation {
    std::shared_ptr<Physical> memory;
    unsigned references = 1;
};

struct PlainAllocation {
    enum class Kind : std::uint8_t { allocated, managed, imported, array };
    std::uint64_t bytes = 0;    ///< as asked for
    std::uint64_t reserved = 0; ///< in whole pages
    const Context* context = nullptr;
    Kind kind = Kind::allocated;
};

/// A pool that stream-ordered memory comes from.
struct MemoryPool {
    CUmemoryPool handle = nullptr;
    int device = 0;
    CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE;
    std::uint64_t most_bytes = ~std::uint64_t{0};
    std::uint64_t threshold = 0; ///< free memory is kept while no more than this is reserved
    std::uint64_t used = 0;
    std::uint64_t used_high = 0;
    std::uint64_t reserved = 0;
    std::uint64_t reserved_high = 0;
    bool is_imported = false;
    pid_t owner = 0; ///< of one that is imported: in which process it is, and its handle there
    CUmemoryPool handle_there = nullptr;
    std::map<CUmemPool_attribute, int>
        reuse;                               ///< the three switches that say what may be used again, and when
    std::map<int, CUmemAccess_flags> access; ///< what each device may do with all of its memory
};

/// A piece of memory of a pool.
struct PoolBlock {
    enum class State : std::uint8_t { live, kept };
    std::shared_ptr<MemoryPool> pool;
    std::uint64_t bytes = 0;    ///< as asked for
    std::uint64_t reserved = 0; ///< in whole pages
    const Context* context = nullptr;
    State state = State::live;
    Ticket freed;         ///< of what is kept: done when the stream got there
    std::uint64_t id = 0; ///< never used twice
};

/// An allocation node's memory: an address for as long as the node lives, backed from a launch of its graph
/// until it is freed.
struct GraphMemory {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;    ///< as asked for
    std::uint64_t reserved = 0; ///< in whole pages
    int device = 0;
    const Context* context = nullptr;
    std::map<int, CUmemAccess_flags> access;
    CUgraph graph = nullptr;
    bool freed_in_graph = false;
    unsigned live = 0; ///< launches that allocated it and have not freed it
};

/// Everything the driver knows. One lock guards it all; whoever waits or runs work lets go of it. Locks
/// inside are taken after it: those of streams, of Faults, of DeviceBudget. Made at the first call and never
/// destroyed.
struct Driver {
    static Driver& instance();

    [[nodiscard]] int device_count() const noexcept { return static_cast<int>(primaries.size()); }
    [[nodiscard]] bool has_device(CUdevice device) const noexcept {
        return device >= 0 && device < device_count();
    }
    [[nodiscard]] PhysicalPool& pool(int device) { return *pools[static_cast<std::size_t>(device)]; }

    std::mutex mutex;
    std::vector<std::unique_ptr<PhysicalPool>> pools;
    PhysicalPool host_pool{PhysicalPool::k_host};
    AddressSpace space;
    HostMemory host;
    std::vector<PrimaryContext> primaries;
    HandleTable<CUcontext, Context> contexts{1};
    HandleTable<CUstream, Stream> streams{2};
    HandleTable<CUevent, Event> events{3};
    HandleTable<CUmodule, Module> modules{4};
    HandleTable<CUlibrary, Module> libraries{5};
    HandleTable<CUfunction, Function> functions{6}; ///< kernels of libraries too
    HandleTable<CUgraph, Graph> graphs{7};
    HandleTable<CUgraphNode, Graph::Node> nodes{8};
    HandleTable<CUgraphExec, GraphExec> execs{9};
    HandleTable<CUmemGenericAllocationHandle, Allocation> allocations{10};
    HandleTable<CUmemoryPool, MemoryPool> memory_pools{11};
    HandleTable<CUgreenCtx, GreenContext> green_contexts{12};
    std::vector<std::shared_ptr<MemoryPool>> default_pools; ///< one a device
    std::vector<std::shared_ptr<MemoryPool>> current_pools; ///< where cuMemAllocAsync takes from
    std::map<std::uint64_t, PlainAllocation> plain;         ///< this and the next two by address
    std::map<std::uint64_t, PoolBlock> blocks;
    std::map<std::uint64_t, std::shared_ptr<GraphMemory>> graph_memory;
    std::uint64_t plain_bytes = 0;
    std::vector<std::shared_ptr<Capture>> captures;
    std::uint64_t next_id = 1; ///< of contexts and captures

private:
    Driver();
};

/// Makes other processes able to have `memory`. Errors: OPERATING_SYSTEM, OUT_OF_MEMORY.
CUresult share(Driver& driver, Physical& memory);
/// The process was restored: what it exported is its own from now on, and what others have is the old memory.
void part_from_others(Driver& driver);

} // namespace gpu_sleep::sim
