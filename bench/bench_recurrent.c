/**
 * Recurrent mixers, one thread: serial (exact) and chunkwise form of the gated delta rule (8 value heads, 4 key heads, 128 x 128) and of Mamba-2 (16 heads of 64, 8 groups, state 128), and the
 * delta rule with gates per channel (serial only), for segments of 1 to 512 tokens. Operations counted are those of the serial definition: 8 Dk Dv and 5 P N a token and head.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "bench.h"
#include "kernels/recurrent.h"

enum { HK = 4, HV = 8, DK = 128, DV = 128, MH = 16, MP = 64, MG = 8, MN = 128, MOST = 512 };

typedef struct delta_run {
    us_delta d;
    us_delta_seq s;
} delta_run;

typedef struct mamba_run {
    us_mamba2 m;
    us_mamba2_seq s;
} mamba_run;

static float *numbers(size_t n, uint64_t stream, double from, double to) {
    float *p = us_malloc_aligned(n * sizeof *p);
    if (!p) exit(1);
    for (size_t i = 0; i < n; i++) p[i] = (float)(from + (to - from) * us_rng_double(1, stream, i));
    return p;
}

static us_err err;

static void delta(void *arg) {
    delta_run *r = arg;
    if (us_delta_rule(NULL, &r->d, &r->s, 1, &err) != US_OK) exit(1);
    bench_keep(r->s.out);
}

static void mamba(void *arg) {
    mamba_run *r = arg;
    if (us_mamba2_run(NULL, &r->m, &r->s, 1, &err) != US_OK) exit(1);
    bench_keep(r->s.out);
}

int main(int argc, char **argv) {
    us_bench *b = bench_open(argc, argv, "recurrent");
    static const size_t lengths[] = {1, 64, 128, 512};
    enum { L = sizeof lengths / sizeof *lengths };
    static delta_run dr[L * 3];
    static mamba_run mr[L * 2];
    static char names[L * 5][64];
    float *qk = numbers((size_t)MOST * 2 * HK * DK, 1, -0.09, 0.09), *v = numbers((size_t)MOST * HV * DV, 2, -1, 1), *g = numbers((size_t)MOST * HV * DK, 3, -0.1, 0), *beta = numbers(MOST * HV, 4, 0, 1);
    float *state = numbers((size_t)HV * DK * DV, 5, 0, 0), *out = numbers((size_t)MOST * HV * DV, 6, 0, 0);
    float *x = numbers((size_t)MOST * MH * MP, 7, -1, 1), *bc = numbers((size_t)MOST * 2 * MG * MN, 8, -0.1, 0.1), *dt = numbers(MOST * MH, 9, 0, 0.1), *A = numbers(MH, 10, -1, 0), *D = numbers(MH, 11, 0, 1);
    float *h = numbers((size_t)MH * MP * MN, 12, 0, 0);
    int c = 0;
    for (size_t i = 0; i < L; i++) {
        size_t n = lengths[i];
        for (int form = 0; form < 3; form++, c++) {
            delta_run *r = &dr[i * 3 + (size_t)form];
            r->d = (us_delta){HK, HV, DK, DV, form == 2, form == 0};
            r->s = (us_delta_seq){.n = n, .q = qk, .k = qk + HK * DK, .ldqk = 2 * HK * DK, .v = v, .ldv = HV * DV, .g = g, .beta = beta, .state = state, .out = out, .ldo = HV * DV};
            snprintf(names[c], sizeof names[c], "delta rule, %s, %zu tokens", form == 0 ? "serial" : form == 1 ? "as chosen" : "gates per channel", n);
            bench_case(b, &(bench_spec){.name = names[c], .unit = "flop", .work = 8.0 * DK * DV * HV * (double)n, .fn = delta, .arg = r});
        }
        for (int form = 0; form < 2; form++, c++) {
            mamba_run *r = &mr[i * 2 + (size_t)form];
            r->m = (us_mamba2){MH, MP, MG, MN, A, D, form == 0};
            r->s = (us_mamba2_seq){.n = n, .x = x, .B = bc, .C = bc + MG * MN, .ldx = MH * MP, .ldbc = 2 * MG * MN, .dt = dt, .state = h, .out = out, .ldo = MH * MP};
            snprintf(names[c], sizeof names[c], "Mamba-2, %s, %zu tokens", form ? "as chosen" : "serial", n);
            bench_case(b, &(bench_spec){.name = names[c], .unit = "flop", .work = 5.0 * MP * MN * MH * (double)n, .fn = mamba, .arg = r});
        }
    }
    return bench_close(b);
}
