// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Modules, libraries and functions. Images are not read: every module has every registered kernel.

#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/kernels.hpp"

#include <unistd.h>

namespace gpu_sleep::sim {
namespace {

CUresult load(Call& c, Context& context, CUmodule* handle, const void* image) {
    if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
    const auto module = std::make_shared<Module>();
    module->context = &context;
    *handle = c.driver.modules.insert(module);
    return CUDA_SUCCESS;
}

/// The function `name` of a module or library: the same handle each time.
CUresult get_function(Driver& driver, Module& owner, CUmodule module, const char* name, CUfunction* handle) {
    if (!name || !handle) return CUDA_ERROR_INVALID_VALUE;
    SIM_FIND(kernel, KernelRegistry::instance().find(name), CUDA_ERROR_NOT_FOUND);
    auto& known = owner.functions[name];
    if (known == 0) {
        const auto function = std::make_shared<Function>(Function{kernel, module, owner.context});
        known = reinterpret_cast<std::uint64_t>(driver.functions.insert(function));
    }
    *handle = reinterpret_cast<CUfunction>(known);
    return CUDA_SUCCESS;
}

void forget_functions(Driver& driver, const Module& owner) {
    for (const auto& [name, handle] : owner.functions)
        driver.functions.remove(reinterpret_cast<CUfunction>(handle));
}

CUresult get_parameter(const Function& function, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    const auto& parameters = function.kernel->parameters;
    if (!offset || index >= parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = parameters[index].offset;
    if (bytes) *bytes = parameters[index].bytes;
    return CUDA_SUCCESS;
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(unsafe, 2000) cuModuleLoad(Call& c, Context& context, CUmodule* module, const char* file) {
    if (file && ::access(file, R_OK) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
    return load(c, context, module, file);
}

SIM_ENTRY(unsafe, 2000) cuModuleLoadData(Call& c, Context& context, CUmodule* module, const void* image) {
    return load(c, context, module, image);
}

SIM_ENTRY(unsafe, 2010)
cuModuleLoadDataEx(Call& c, Context& context, CUmodule* module, const void* image, unsigned, CUjit_option*,
                   void**) {
    return load(c, context, module, image);
}

SIM_ENTRY(unsafe, 2000)
cuModuleLoadFatBinary(Call& c, Context& context, CUmodule* module, const void* image) {
    return load(c, context, module, image);
}

SIM_ENTRY(unsafe, 2000) cuModuleUnload(Call& c, Context&, CUmodule handle) {
    SIM_FIND(module, c.driver.modules.remove(handle), CUDA_ERROR_INVALID_HANDLE);
    forget_functions(c.driver, *module);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 2000)
cuModuleGetFunction(Call& c, Context&, CUfunction* function, CUmodule handle, const char* name) {
    const auto module = c.driver.modules.find(handle);
    return module ? get_function(c.driver, *module, handle, name, function) : CUDA_ERROR_INVALID_HANDLE;
}

SIM_ENTRY(unsafe, 12000)
cuLibraryLoadData(Call& c, CUlibrary* handle, const void* image, CUjit_option*, void**, unsigned,
                  CUlibraryOption*, void**, unsigned) {
    if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
    *handle = c.driver.libraries.insert(std::make_shared<Module>());
    return CUDA_SUCCESS;
}

SIM_ENTRY(unsafe, 12000) cuLibraryUnload(Call& c, CUlibrary handle) {
    SIM_FIND(library, c.driver.libraries.remove(handle), CUDA_ERROR_INVALID_HANDLE);
    forget_functions(c.driver, *library);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 12000) cuLibraryGetKernel(Call& c, CUkernel* kernel, CUlibrary handle, const char* name) {
    SIM_FIND(library, c.driver.libraries.find(handle), CUDA_ERROR_INVALID_HANDLE);
    return get_function(c.driver, *library, nullptr, name, reinterpret_cast<CUfunction*>(kernel));
}

SIM_ENTRY(safe, 12000) cuKernelGetFunction(Call& c, Context&, CUfunction* function, CUkernel kernel) {
    const auto same = reinterpret_cast<CUfunction>(kernel);
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    if (!c.driver.functions.find(same)) return CUDA_ERROR_INVALID_HANDLE;
    *function = same;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 12040)
cuKernelGetParamInfo(Call& c, CUkernel kernel, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    SIM_FIND(function, c.driver.functions.find(reinterpret_cast<CUfunction>(kernel)),
             CUDA_ERROR_INVALID_HANDLE);
    return get_parameter(*function, index, offset, bytes);
}

SIM_ENTRY(safe, 12040)
cuFuncGetParamInfo(Call& c, CUfunction handle, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    SIM_FIND(function, c.driver.functions.find(handle), CUDA_ERROR_INVALID_HANDLE);
    return get_parameter(*function, index, offset, bytes);
}
