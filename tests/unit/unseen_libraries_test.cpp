// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Libraries whose use of the GPU cannot be seen, found among a process's mappings.

#include "model/unseen_libraries.hpp"

#include "support/catch.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::model;
using namespace gpu_sleep::test;

namespace {

/// A line of /proc/PID/maps.
std::string mapped(std::string_view file, std::string_view permissions = "r-xp") {
    return fmt::format("7f3a5c000000-7f3a5c021000 {} 0002a000 08:01 2752681                    {}\n",
                       permissions, file);
}

std::string found(std::string_view mappings) {
    return list_of(unseen_libraries(mappings));
}

} // namespace

TEST_CASE("Unseen libraries: each of the table is known by its name without version", "[unseen_libraries]") {
    const auto [name, use] = GENERATE(table<std::string, std::string>({
        {"libnvcuvid.so.580.159.04", "video decoding"},
        {"libvdpau_nvidia.so.1", "video decoding"},
        {"libnvidia-encode.so.1", "video encoding"},
        {"libnvidia-opticalflow.so.1", "optical flow"},
        {"libnvidia-fbc.so.1", "screen capture"},
        {"libnvoptix.so.1", "OptiX"},
        {"libnvidia-opencl.so", "OpenCL"},
        {"libGLX_nvidia.so.0", "OpenGL or Vulkan"},
        {"libEGL_nvidia.so.0", "OpenGL or Vulkan"},
        {"libnvidia-glcore.so.580.159.04", "OpenGL or Vulkan"},
        {"libnvidia-eglcore.so.580.159.04", "OpenGL or Vulkan"},
    }));
    const auto expected = fmt::format("{} ({})", use, name);
    CHECK(found(mapped("/usr/lib/x86_64-linux-gnu/" + name)) == expected);
    CHECK(found(mapped("/opt/a b/" + name)) == expected);
    CHECK(found(mapped("/usr/lib/" + name + " (deleted)")) == expected);
    CHECK(found(mapped("/usr/lib/" + name, "r--p")).empty()); // somebody only reads the file
    CHECK(found(mapped("/usr/lib/" + name + "/other.so")).empty());
    CHECK(found(mapped("/usr/lib/x" + name)).empty());
    CHECK(found(mapped("[anon:/" + name + "]")).empty());
}

TEST_CASE("Unseen libraries: a decoder is what the driver does not restore", "[unseen_libraries]") {
    const auto why = [](std::string_view file) { return why_not_restored(unseen_libraries(mapped(file))); };
    CHECK_THAT(why("/usr/lib/libnvcuvid.so.580.159.04"),
               mentions("it has loaded libnvcuvid.so.580.159.04 for"));
    CHECK(why("/usr/lib/libnvidia-encode.so.1").empty());
    CHECK(why("/usr/lib/libcuda.so.1").empty());
}

TEST_CASE("Unseen libraries: what every CUDA program loads is none", "[unseen_libraries]") {
    for (const auto* file :
         {"/usr/lib/libcuda.so.580.159.04", "/usr/lib/libnvidia-ml.so.580.159.04",
          "/usr/lib/libnvidia-ptxjitcompiler.so.580.159.04", "/usr/lib/libnvidia-nvvm.so.4",
          "/usr/lib/libnvidia-gpucomp.so.580.159.04", "/site-packages/nvidia/cu13/lib/libcufile.so.0",
          "/usr/lib/libcudart.so.13", "/usr/lib/libOpenCL.so.1", "/usr/lib/libGL.so.1", "/usr/lib/libnvcuvid",
          "/usr/lib/libnvcuvid.so2", "/usr/lib/libnvidia-encodeX.so.1"}) {
        INFO(file);
        CHECK(found(mapped(file)).empty());
    }
    for (const auto* device : {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}) {
        INFO(device);
        CHECK(found(mapped(device, "rw-s")).empty());
    }
}

TEST_CASE("Unseen libraries: GPUDirect Storage counts by its mapped buffer alone", "[unseen_libraries]") {
    CHECK(found(mapped("/usr/lib/libcufile.so.0") + mapped("/dev/nvidia-fs3", "rw-s")) ==
          "GPUDirect Storage (nvidia-fs3)");
}

TEST_CASE("Unseen libraries: each is listed once, by what it is for", "[unseen_libraries]") {
    CHECK(found("").empty());
    CHECK(found("\n \n/\n /\n").empty());
    CHECK(found("7f3a5c000000-7f3a5c021000 rw-p 00000000 00:00 0 \n").empty());
    std::string mappings = mapped("/usr/lib/libnvidia-glcore.so.1", "r--p") +
                           mapped("/usr/lib/libnvidia-glcore.so.1") + mapped("/usr/bin/server") +
                           mapped("/usr/lib/libnvidia-glcore.so.1", "rw-p") +
                           mapped("/usr/lib/libGLX_nvidia.so.0") + mapped("/usr/lib/libnvidia-glcore.so.1") +
                           mapped("/usr/lib/libnvcuvid.so.1");
    mappings.pop_back();
    CHECK(found(mappings) ==
          "video decoding (libnvcuvid.so.1), OpenGL or Vulkan (libGLX_nvidia.so.0, libnvidia-glcore.so.1)");
    std::string many;
    for (int i = 0; i < 20; ++i) many += mapped(fmt::format("/usr/lib/libnvcuvid.so.{}", i));
    CHECK(unseen_libraries(many).size() == 20);
    CHECK(found(many).ends_with("libnvcuvid.so.11) and others"));
}

TEST_CASE("Unseen libraries: a second CUDA driver is one, a second mapping is none", "[unseen_libraries]") {
    const auto driver = [](std::string_view at, std::string_view offset, std::string_view permissions,
                           std::string_view file = "/usr/lib/libcuda.so.580.159.04") {
        return fmt::format("{}000-{}fff {} {} 08:01 2752681  {}\n", at, at, permissions, offset, file);
    };
    const auto one = driver("7f0010", "00000000", "r--p") + driver("7f0020", "00100000", "r-xp") +
                     driver("7f0030", "00200000", "r-xp") + driver("7f0040", "00100000", "rw-p");
    const auto second = driver("7f0080", "00100000", "r-xp");
    const std::string named = "a second CUDA driver, which needs gpu-run --audit (libcuda.so.580.159.04)";
    CHECK(found(one).empty());
    CHECK(found(one + driver("7f0080", "00000000", "r--p")).empty()); // somebody only reads the file
    CHECK(found(one + second) == named);
    CHECK(found(one + driver("7f0080", "00300000", "r-xp", "/compat/libcuda.so.1")) ==
          "a second CUDA driver, which needs gpu-run --audit (libcuda.so.1)");
    CHECK(found(one + mapped("/usr/lib/libgpu-sleep-audit.so") + second).empty());
    CHECK(found(one + second + mapped("/usr/lib/libgpu-sleep-audit.so") +
                mapped("/usr/lib/libnvoptix.so.1")) == "OptiX (libnvoptix.so.1)");
}
