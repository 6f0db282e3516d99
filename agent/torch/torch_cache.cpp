// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// torch.cuda.empty_cache, called with Python's lock.

#include "torch/torch_cache.hpp"

#include "common/park.h"
#include "gate/gate.hpp"
#include "python/functions.hpp"

namespace gpu_sleep::agent::torch {
namespace {

void call_empty_cache(const python::Functions& python, CacheRequest& request, bool (*prepare)()) {
    auto* const modules = python.get_module_dict();
    auto* const torch = modules ? python.dict_get(modules, "torch.cuda") : nullptr;
    if (!torch || !prepare() || !request.begin()) return; // given up: by now memory may sleep
    auto* const done = python.call_method(torch, "empty_cache", nullptr);
    if (done)
        python.decrement(done);
    else
        python.clear_error();
}

} // namespace

void empty_torch_cache(CacheRequest& request, bool (*prepare)()) noexcept {
    const auto* found = python::functions();
    if (!found || !found->ensure || !found->release || !found->get_module_dict || !found->dict_get ||
        !found->call_method || !found->decrement || !found->clear_error || !found->is_initialized())
        return;
    struct Call {
        const python::Functions& python;
        CacheRequest& request;
        bool (*prepare)();
    };
    const auto with_lock = [](void* argument) {
        const auto& call = *static_cast<const Call*>(argument);
        const int state = call.python.ensure();
        call_empty_cache(call.python, call.request, call.prepare);
        call.python.release(state);
    };
    const gate::Exemption exempt;
    Call call{*found, request, prepare};
    gpu_sleep_call_or_park(with_lock, &call, nullptr);
}

} // namespace gpu_sleep::agent::torch
