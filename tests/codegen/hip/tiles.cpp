// Products and reductions of tile.h on an emulated device, beside sums in float64; functions of math.h beside those of C++.
#include "mirage/hip/tile.h"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

using namespace mirage;
static int wrong = 0;

static void expect(double found, double wanted, double bound, const char* what) {
    if (std::isnan(wanted) ? !std::isnan(found) : found != wanted && !(std::fabs(found - wanted) <= bound)) {
        if (wrong++ < 9) std::printf("%s: %.9g instead of %.9g\n", what, found, wanted);
    }
}

template <class F>
static void threads(int count, F body) {
    pthread_barrier_init(&block_barrier, nullptr, count);
    for (int w = 0; w * waves_of < count; ++w) pthread_barrier_init(&wave_barriers[w], nullptr, min(waves_of, count));
    std::vector<std::thread> all;
    for (int t = 0; t < count; ++t) all.emplace_back([=] { threadIdx.x = t, body(); });
    for (std::thread& t : all) t.join();
}
static float drawn() { return static_cast<float>(rand() % 33 - 16) / 8; }
static void set(float& to, float x) { to = x; }
static void set(__half& to, float x) { put(to, x); }
static void set(__nv_bfloat16& to, float x) { put(to, x); }

template <class T, class F, int K, bool A_ROWS, bool B_ROWS>
static void product(const char* what) {
    constexpr int LDA = (A_ROWS ? K : F::M) + 8, LDB = (B_ROWS ? F::N : K) + 8;
    static T a[(A_ROWS ? F::M : K) * LDA], b[(B_ROWS ? K : F::N) * LDB];
    static float found[F::M][F::N], rows[F::M], cols[F::N], scratch[16 * (F::M + F::N)];
    static double wanted[F::M][F::N];
    for (int m = 0; m < F::M; ++m)
        for (int k = 0; k < K; ++k) set(a[A_ROWS ? m * LDA + k : k * LDA + m], drawn());
    for (int n = 0; n < F::N; ++n)
        for (int k = 0; k < K; ++k) set(b[B_ROWS ? k * LDB + n : n * LDB + k], drawn());
    threads(32 * F::WM * F::WN, [] {
        F acc;
        acc.fill(1.0f);
        contract<K, A_ROWS, LDA, B_ROWS, LDB>(acc, a, b);
        MIRAGE_EACH(F) found[F::row(m_, i_)][F::col(n_, i_)] = acc.v[m_][n_][i_];
        reduce_rows<Sum, F, 32 * F::WM * F::WN>(scratch, [&](int, int, int m, int n, int i) { return acc.v[m][n][i]; },
                                               [](int r, float x) { rows[r] = x; });
        __syncthreads();
        reduce_cols<Max, F, 32 * F::WM * F::WN>(scratch, [&](int, int, int m, int n, int i) { return acc.v[m][n][i]; },
                                               [](int c, float x) { cols[c] = x; });
    });
    for (int m = 0; m < F::M; ++m) {
        double sum = 0;
        for (int n = 0; n < F::N; ++n) {
            wanted[m][n] = 1.0;
            for (int k = 0; k < K; ++k)
                wanted[m][n] += double(to_float(a[A_ROWS ? m * LDA + k : k * LDA + m])) * to_float(b[B_ROWS ? k * LDB + n : n * LDB + k]);
            expect(found[m][n], wanted[m][n], 1e-4, what);
            sum += wanted[m][n];
        }
        expect(rows[m], sum, 1e-2, "row");
    }
    for (int n = 0; n < F::N; ++n) {
        double top = -INFINITY;
        for (int m = 0; m < F::M; ++m) top = wanted[m][n] > top ? wanted[m][n] : top;
        expect(cols[n], top, 1e-4, "column");
    }
}

template <class T>
static void products() {
    product<T, Fragment<16, 64, 1, 4>, 32, true, true>("side by side");
    product<T, Fragment<32, 32, 2, 2>, 16, false, true>("two by two");
    product<T, Fragment<64, 16, 4, 1>, 16, true, false>("one below the other");
    product<T, Fragment<32, 48, 1, 2>, 48, false, false>("many");
    product<T, Fragment<16, 8, 1, 1>, 16, true, true>("one");
}

static void functions() {
    struct Case {
        const char* name;
        float (*own)(float);
        double (*exact)(double);
    };
    const Case cases[] = {{"exp", m_exp, std::exp}, {"log", m_log, std::log}, {"tanh", m_tanh, std::tanh},
                          {"erf", m_erf, std::erf}, {"sin", m_sin, std::sin}, {"cos", m_cos, std::cos}};
    for (const Case& c : cases)
        for (float x = -100.0f; x <= 100.0f; x += 0.0371f)
            for (float scale : {1.0f, 1e-3f, 1e-20f}) {
                const double wanted = static_cast<float>(c.exact(x * scale));
                expect(c.own(x * scale), wanted, 1e-6 * std::fabs(wanted) + 1e-40, c.name);
            }
    for (float x : {INFINITY, -INFINITY, NAN, 0.0f})
        for (const Case& c : cases) expect(c.own(x), c.exact(x), 0, c.name);
    const float bases[] = {0.0f, -0.0f, 0.5f, -2.0f, 3.0f, 1e-30f, INFINITY, -INFINITY, 1.0f, -1.0f, NAN, 1.5f};
    for (float x : bases)
        for (float y : {0.0f, 2.0f, 3.0f, -3.0f, 0.5f, -0.5f, INFINITY, -INFINITY, 1e9f, 1e-9f, NAN}) {
            const double wanted = std::pow(x, y);
            expect(m_pow(x, y), wanted, 1e-6 * std::fabs(wanted), "pow");
        }
    expect(__nv_bfloat16(1.00390625f).bits, 0x3f80, 0, "half way, to even");
    expect(__nv_bfloat16(1.01171875f).bits, 0x3f82, 0, "half way, to even");
    expect(to_float(__nv_bfloat16(NAN)), NAN, 0, "bfloat");
    expect(m_softplus(3.0f), std::log1p(std::exp(3.0)), 1e-6, "softplus");
    expect(m_softplus(-30.0f), std::log1p(std::exp(-30.0)), 1e-16, "softplus");
}

int main() {
    waves_of = WAVE;
    products<float>();
    products<__half>();
    products<__nv_bfloat16>();
    functions();
    return wrong != 0;
}
