/* SHA-256 through libcrypto's EVP interface. */
#include "io/sha256.h"

#include <openssl/evp.h>

#include "base/alloc.h"

struct us_sha256 {
    EVP_MD_CTX *md;
};

us_status us_sha256_create(us_sha256 **out, us_err *err) {
    us_sha256 *h = us_calloc(1, sizeof *h);
    if (h) h->md = EVP_MD_CTX_new();
    if (!h || !h->md || EVP_DigestInit_ex(h->md, EVP_sha256(), NULL) != 1) {
        us_sha256_free(h);
        return us_fail_nomem(err, "starting SHA-256");
    }
    *out = h;
    return US_OK;
}

void us_sha256_free(us_sha256 *h) {
    if (!h) return;
    EVP_MD_CTX_free(h->md);
    us_free(h);
}

void us_sha256_reset(us_sha256 *h) {
    EVP_DigestInit_ex(h->md, EVP_sha256(), NULL);
}

void us_sha256_add(us_sha256 *h, const void *p, size_t n) {
    EVP_DigestUpdate(h->md, p, n);
}

void us_sha256_hex(us_sha256 *h, char out[65]) {
    static const char digits[] = "0123456789abcdef";
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    EVP_DigestFinal_ex(h->md, raw, &n);
    for (unsigned i = 0; i < 32; i++) {
        out[2 * i] = digits[raw[i] >> 4];
        out[2 * i + 1] = digits[raw[i] & 15];
    }
    out[64] = 0;
}
