// Tiles of one group of work-items. OpenCL C 1.2 has neither templates nor functions as arguments, so instructions are macros,
// and one that takes functions is a row of them: NAME_0 opens what is in front of the first function's body, NAME_0_RETURN
// takes its result, NAME_1 stands between the two bodies, NAME_END closes. `meet` is memory in which work-items meet.
#define THREAD ((int)get_local_id(0))
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)

// --- fragments ------------------------------------------------------------------------------------------------------
// M x N floats spread over WM x WN times 32 work-items: one has two neighbouring columns of two rows, 8 apart, of every
// 16 x 8 matrix.
#define FRAGMENT(F, M_, N_, WM_, WN_)                                                                               \
    enum { F##_M = M_, F##_N = N_, F##_WM = WM_, F##_WN = WN_, F##_MT = M_ / (16 * WM_), F##_NT = N_ / (8 * WN_) }; \
    typedef struct {                                                                                                \
        float v[F##_MT][F##_NT][4];                                                                                 \
    } F
#define ACTIVE(F) (THREAD / 32 < F##_WM * F##_WN)
#define WARP_ROW(F) (THREAD / 32 % F##_WM)
#define WARP_COL(F) (THREAD / 32 / F##_WM)
#define FRAGMENT_row(F, m, i) ((WARP_ROW(F) * F##_MT + (m)) * 16 + THREAD % 32 / 4 + (i) / 2 * 8)
#define FRAGMENT_col(F, n, i) ((WARP_COL(F) * F##_NT + (n)) * 8 + THREAD % 4 * 2 + (i) % 2)
#define MIRAGE_EACH(F)                          \
    if (ACTIVE(F))                              \
        for (int m_ = 0; m_ < F##_MT; ++m_)     \
            for (int n_ = 0; n_ < F##_NT; ++n_) \
                for (int i_ = 0; i_ < 4; ++i_)
#define FRAGMENT_fill(F, f, x)              \
    for (int m_ = 0; m_ < F##_MT; ++m_)     \
        for (int n_ = 0; n_ < F##_NT; ++n_) \
            for (int i_ = 0; i_ < 4; ++i_) (f).v[m_][n_][i_] = (x)

// --- copies from global to local memory -----------------------------------------------------------------------------
// ROWS rows of COLS elements in chunks of BYTES; the body says where row r comes from (0: it is zero) and goes to. Columns
// from `valid` on are zero. Sources and destinations are aligned to BYTES.
#define load_rows_0(T, ROWS, COLS, BYTES, THREADS, tile, any, valid, r)           \
    {                                                                             \
        enum { VEC_ = (BYTES) / sizeof(T), CHUNKS_ = (COLS) / VEC_ };             \
        for (int l_ = THREAD; l_ < (ROWS) * CHUNKS_; l_ += (THREADS)) {           \
            const int c_ = l_ % CHUNKS_ * VEC_, r = l_ / CHUNKS_, valid_ = valid; \
            __local T* const tile_ = (tile) + c_;
#define load_rows_0_RETURN(T, ROWS, COLS, BYTES, THREADS, from, to)                           \
            if ((from) != 0 && c_ + VEC_ <= valid_) {                                         \
                COPY_CHUNK(tile_ + (to), (from) + c_, VEC_ * sizeof(*tile_));                 \
            } else {                                                                          \
                for (int v_ = 0; v_ < VEC_; ++v_)                                             \
                    tile_[(to) + v_] = (from) != 0 && c_ + v_ < valid_ ? (from)[c_ + v_] : 0; \
            }
#define load_rows_END }}
#define COPY_CHUNK(to, from, BYTES)                                                  \
    if ((BYTES) == 16) *(__local chunk16*)(to) = *(__global const chunk16*)(from);   \
    else if ((BYTES) == 8) *(__local chunk8*)(to) = *(__global const chunk8*)(from); \
    else *(__local uint32_t*)(to) = *(__global const uint32_t*)(from)
typedef uint4 chunk16 ELEMENT;
typedef uint2 chunk8 ELEMENT;

// --- contractions ---------------------------------------------------------------------------------------------------
// acc += a * b over K positions, of elements of a kind. A_ROWS: a is stored [M][K] (else [K][M]); B_ROWS: b is stored
// [K][N] (else [N][K]). These positions have a sum of their own, which is then added.
#define contract(KIND, F, K, A_ROWS, LDA, B_ROWS, LDB, acc, a, b)                                           \
    if (ACTIVE(F)) {                                                                                        \
        F sums_;                                                                                            \
        FRAGMENT_fill(F, sums_, 0.0f);                                                                      \
        for (int k_ = 0; k_ < (K); ++k_) {                                                                  \
            float x_[F##_MT][2], y_[F##_NT][2];                                                             \
            for (int m_ = 0; m_ < F##_MT; ++m_)                                                             \
                for (int i_ = 0; i_ < 2; ++i_)                                                              \
                    x_[m_][i_] = float_of_##KIND((a)[(A_ROWS) ? FRAGMENT_row(F, m_, 2 * i_) * (LDA) + k_    \
                                                              : k_ * (LDA) + FRAGMENT_row(F, m_, 2 * i_)]); \
            for (int n_ = 0; n_ < F##_NT; ++n_)                                                             \
                for (int i_ = 0; i_ < 2; ++i_)                                                              \
                    y_[n_][i_] = float_of_##KIND((b)[(B_ROWS) ? k_ * (LDB) + FRAGMENT_col(F, n_, i_)        \
                                                              : FRAGMENT_col(F, n_, i_) * (LDB) + k_]);     \
            for (int m_ = 0; m_ < F##_MT; ++m_)                                                             \
                for (int n_ = 0; n_ < F##_NT; ++n_)                                                         \
                    for (int i_ = 0; i_ < 4; ++i_)                                                          \
                        sums_.v[m_][n_][i_] = fma(x_[m_][i_ / 2], y_[n_][i_ % 2], sums_.v[m_][n_][i_]);     \
        }                                                                                                   \
        for (int m_ = 0; m_ < F##_MT; ++m_)                                                                 \
            for (int n_ = 0; n_ < F##_NT; ++n_)                                                             \
                for (int i_ = 0; i_ < 4; ++i_) (acc).v[m_][n_][i_] += sums_.v[m_][n_][i_];                  \
    }

// --- reductions -----------------------------------------------------------------------------------------------------
#define Sum_none() 0.0f
#define Sum_join(x, y) ((x) + (y))
#define Max_none() (-INFINITY)
#define Max_join(x, y) m_max(x, y)
#define LANES(OVER) ((OVER) >= 32 ? 32 : (OVER) >= 16 ? 16 : (OVER) >= 8 ? 8 : (OVER) >= 4 ? 4 : (OVER) >= 2 ? 2 : 1)

// For each of OUT results, R over the first body's values (o, k) for k < OVER, in the type T; the second body takes (o, x).
#define reduce_0(R, OUT, OVER, THREADS, T, o, k)                     \
    {                                                                \
        enum { LANES_ = LANES(OVER), GROUPS_ = (THREADS) / LANES_ }; \
        typedef T meet_t ELEMENT;                                    \
        __local meet_t* const meet_ = (__local meet_t*)meet;         \
        for (int first_ = 0; first_ < (OUT); first_ += GROUPS_) {    \
            const int o = first_ + THREAD / LANES_;                  \
            T x_ = R##_none();                                       \
            if (o < (OUT))                                           \
                for (int k = THREAD % LANES_; k < (OVER); k += LANES_) {
#define reduce_0_RETURN(R, OUT, OVER, THREADS, T, value) x_ = R##_join(x_, (T)(value));
#define reduce_1(R, OUT, OVER, THREADS, T, o, x)                            \
                }                                                           \
            meet_[THREAD] = x_;                                             \
            SYNC;                                                           \
            if (THREAD % LANES_ == 0 && first_ + THREAD / LANES_ < (OUT)) { \
                const int o = first_ + THREAD / LANES_;                     \
                T x = x_;                                                   \
                for (int l_ = 1; l_ < LANES_; ++l_) x = R##_join(x, meet_[THREAD + l_]);
#define reduce_END \
            }      \
            SYNC;  \
        }          \
    }

// For each row of a fragment, R over the first body's values (row, col, m, n, i); the second body takes (r, x).
#define reduce_rows_0(R, F, THREADS, scratch, row, col, m, n, i)                                         \
    {                                                                                                    \
        __local float32_t* const meet_ = (__local float32_t*)meet;                                       \
        if (ACTIVE(F))                                                                                   \
            for (int m = 0; m < F##_MT; ++m)                                                             \
                for (int h_ = 0; h_ < 2; ++h_) {                                                         \
                    const int at_ = (WARP_COL(F) * 4 + THREAD % 4) * F##_M + FRAGMENT_row(F, m, 2 * h_); \
                    float x_ = R##_none();                                                               \
                    for (int n = 0; n < F##_NT; ++n)                                                     \
                        for (int i = 2 * h_; i < 2 * h_ + 2; ++i) {                                      \
                            const int row = FRAGMENT_row(F, m, i), col = FRAGMENT_col(F, n, i);
#define reduce_rows_0_RETURN(R, F, THREADS, value) x_ = R##_join(x_, value);
#define reduce_rows_1(R, F, THREADS, r, x)                \
                        }                                 \
                    meet_[at_] = x_;                      \
                }                                         \
        SYNC;                                             \
        for (int r = THREAD; r < F##_M; r += (THREADS)) { \
            float x = R##_none();                         \
            for (int w_ = 0; w_ < 4 * F##_WN; ++w_) x = R##_join(x, meet_[w_ * F##_M + r]);
#define reduce_rows_END \
        }               \
        SYNC;           \
    }

// For each column.
#define reduce_cols_0(R, F, THREADS, scratch, row, col, m, n, i)                                          \
    {                                                                                                     \
        __local float32_t* const meet_ = (__local float32_t*)meet;                                        \
        if (ACTIVE(F))                                                                                    \
            for (int n = 0; n < F##_NT; ++n)                                                              \
                for (int h_ = 0; h_ < 2; ++h_) {                                                          \
                    const int at_ = (WARP_ROW(F) * 8 + THREAD % 32 / 4) * F##_N + FRAGMENT_col(F, n, h_); \
                    float x_ = R##_none();                                                                \
                    for (int m = 0; m < F##_MT; ++m)                                                      \
                        for (int i = h_; i < 4; i += 2) {                                                 \
                            const int row = FRAGMENT_row(F, m, i), col = FRAGMENT_col(F, n, i);
#define reduce_cols_0_RETURN(R, F, THREADS, value) x_ = R##_join(x_, value);
#define reduce_cols_1(R, F, THREADS, c, x)                \
                        }                                 \
                    meet_[at_] = x_;                      \
                }                                         \
        SYNC;                                             \
        for (int c = THREAD; c < F##_N; c += (THREADS)) { \
            float x = R##_none();                         \
            for (int w_ = 0; w_ < 8 * F##_WM; ++w_) x = R##_join(x, meet_[w_ * F##_N + c]);
#define reduce_cols_END \
        }               \
        SYNC;           \
    }
