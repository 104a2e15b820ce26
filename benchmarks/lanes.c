/* Rounds of FedAvg with squared loss and batches of one row: the clients of a trajectory in SIMD lanes, eight at a time.
   The draws are those of fedconvex.draws; the clients are in the order of their keys, `per` rows each. */
#include <stdint.h>
#include <string.h>

enum { LANES = 8, MOST = 128 };  /* most clients, and most features, of a trajectory */
typedef uint64_t Words __attribute__((vector_size(8 * LANES)));
typedef int64_t Whole __attribute__((vector_size(8 * LANES)));
typedef double Reals __attribute__((vector_size(8 * LANES)));

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u, M1 = 0xBF58476D1CE4E5B9u, M2 = 0x94D049BB133111EBu;

#define MIX(z) (z = (z ^ (z >> 30)) * M1, z = (z ^ (z >> 27)) * M2, z ^ (z >> 31))

static uint64_t mix(uint64_t z) { return MIX(z); }
static Words mixes(Words z) { return MIX(z); }

static int64_t below(uint64_t state, int64_t j, int64_t n) {
    return (int64_t)((double)(int64_t)(mix(state + GOLDEN * (uint64_t)(j + 1)) >> 11) * 0x1p-53 * (double)n);
}

static void choose(uint64_t state, int64_t K, int64_t m, int64_t *out) {
    int64_t order[MOST];
    if (m * m > 4 * K) {
        for (int64_t i = 0; i < K; i++) order[i] = i;
        for (int64_t i = 0; i < m; i++) {
            int64_t j = i + below(state, i, K - i), kept = order[i];
            order[i] = order[j], order[j] = kept, out[i] = order[i];
        }
        return;
    }
    for (int64_t i = 0; i < m; i++) {
        int64_t top = K - m + i, pick = below(state, i, top + 1);
        for (int64_t j = 0; j < i; j++)
            if (out[j] == pick) pick = top;
        out[i] = pick;
    }
}

/* Steps of eight clients from w, added to `sum` by the first `used` of them. */
static void lanes(const double *X, const double *y, int64_t d, int64_t per, int64_t tau, double step, Words state,
                  Whole first, int64_t used, const double *w, double *sum) {
    Reals v[d], x[d];
    for (int64_t q = 0; q < d; q++) v[q] = (Reals){0} + w[q];
    for (int64_t s = 0; s < tau; s++) {
        Reals u = __builtin_convertvector((Whole)(mixes(state + GOLDEN * (uint64_t)(s + 1)) >> 11), Reals) * 0x1p-53;
        Whole i = first + __builtin_convertvector(u * (double)per, Whole);
        Reals z, c;
        for (int l = 0; l < LANES; l++) z[l] = -y[i[l]];
        for (int64_t q = 0; q < d; q++) {
            for (int l = 0; l < LANES; l++) x[q][l] = X[i[l] * d + q];
            z += x[q] * v[q];
        }
        c = -step * z;
        for (int64_t q = 0; q < d; q++) v[q] += c * x[q];
    }
    for (int64_t q = 0; q < d; q++)
        for (int64_t l = 0; l < used; l++) sum[q] += v[q][l];
}

/* W (R, d) after each of the rounds first, ..., first + rounds - 1, with m of K clients; ids and starts of their rows. */
void run_rounds(const double *X, const double *y, int64_t K, int64_t d, int64_t per, const int64_t *ids,
                const int64_t *starts, int64_t m, int64_t tau, double step, uint64_t key, int64_t R, int64_t first,
                int64_t rounds, double *W) {
    int64_t clients[MOST];
    for (int64_t t = first; t < first + rounds; t++)
        for (int64_t r = 0; r < R; r++) {
            double sum[MOST] = {0}, *w = W + r * d;
            uint64_t mine = mix(mix(key + GOLDEN * (uint64_t)(r + 1)) + GOLDEN * (uint64_t)(t + 1));
            choose(mix(mix(mine) + GOLDEN * 2), K, m, clients); /* client -1, purpose 1 */
            for (int64_t j = 0; j < m; j += LANES) {
                int64_t used = m - j < LANES ? m - j : LANES;
                Words state;
                Whole start;
                for (int l = 0; l < LANES; l++) {
                    int64_t k = clients[j + (l < used ? l : 0)];
                    state[l] = (uint64_t)(ids[k] + 1), start[l] = starts[k];
                }
                state = mixes(mixes(mine + GOLDEN * state) + GOLDEN); /* purpose 0 */
                lanes(X, y, d, per, tau, step, state, start, used, w, sum);
            }
            for (int64_t q = 0; q < d; q++) w[q] = sum[q] / (double)m;
        }
}
