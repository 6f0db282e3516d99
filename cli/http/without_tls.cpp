// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the static libmicrohttpd needs of GnuTLS to be linked, loaded and unloaded. The door speaks no TLS.

#include <cstddef>
#include <cstdlib>

extern "C" {

int gnutls_global_init();
void gnutls_global_deinit();
extern void* (*gnutls_malloc)(std::size_t);

int gnutls_global_init() {
    return 0; // GNUTLS_E_SUCCESS
}
void gnutls_global_deinit() {}
void* (*gnutls_malloc)(std::size_t) = std::malloc;
}
