// SPDX-License-Identifier: Apache-2.0
//
// Overloads of Warp's solver functions for calls that have a device function of this project. Warp's own templates take
// the function as their first argument; here it is a Solver, so that these overloads are more specialized. Warp's
// headers come before.

#pragma once

namespace wt {

// Stands for a device function. Function::run takes pointers to the operands, and to Function::scratch elements of
// shared memory if that is not 0.
template <class Function>
struct Solver { };

}  // namespace wt

namespace wp {

template <bool Upper, class F, class Gemm, class Trsm, class TileA, class TileOut>
inline CUDA_CALLABLE TileOut& tile_cholesky(wt::Solver<F>, Gemm, Trsm, TileA& A, TileOut& Out)
{
    F::run(A.data.ptr, Out.data.ptr);
    Out.initialized = true;
    return Out;
}

template <bool Upper, class F, class TileA>
inline CUDA_CALLABLE void tile_cholesky_inplace(wt::Solver<F>, TileA& A)
{
    F::run(A.data.ptr, A.data.ptr);
}

// The adjoint's function stands in place of Warp's GEMM; the one in place of Warp's TRSM is not used.
template <bool Upper, class Fwd, class F, class Trsm, class TileA, class TileOut>
inline CUDA_CALLABLE void adj_tile_cholesky(Fwd, wt::Solver<F>, Trsm, TileA&, TileOut& Out, Fwd, wt::Solver<F>, Trsm,
                                            TileA& adj_A, TileOut& adj_Out, TileOut&)
{
    alignas(16) __shared__ typename TileA::Type scratch[F::scratch];
    F::run(Out.data.ptr, adj_Out.grad.ptr, adj_A.grad.ptr, &scratch[0]);
}

template <bool Upper, class F, class TileA, class TileY, class TileX>
inline CUDA_CALLABLE TileX& tile_cholesky_solve(wt::Solver<F>, TileA& A, TileY& Y, TileX& X)
{
    F::run(A.data.ptr, Y.data.ptr, X.data.ptr);
    X.initialized = true;
    return X;
}

template <bool Upper, class F, class TileA, class TileY>
inline CUDA_CALLABLE void tile_cholesky_solve_inplace(wt::Solver<F>, TileA& A, TileY& Y)
{
    F::run(A.data.ptr, Y.data.ptr, Y.data.ptr);
}

template <class F, class Bkwd, class TileL, class TileY, class TileZ>
inline CUDA_CALLABLE TileZ& tile_lower_solve(wt::Solver<F>, Bkwd, TileL& L, TileY& y, TileZ& z)
{
    F::run(L.data.ptr, y.data.ptr, z.data.ptr);
    z.initialized = true;
    return z;
}

template <class F, class TileL, class TileY>
inline CUDA_CALLABLE void tile_lower_solve_inplace(wt::Solver<F>, TileL& L, TileY& y)
{
    F::run(L.data.ptr, y.data.ptr, y.data.ptr);
}

template <class Fwd, class F, class TileL, class TileY, class TileZ, class AdjFwd, class AdjBkwd, class AdjTileL,
          class AdjTileY, class AdjTileZ, class AdjRet>
inline CUDA_CALLABLE void adj_tile_lower_solve(Fwd, wt::Solver<F>, TileL& L, TileY&, TileZ& z, AdjFwd, AdjBkwd,
                                               AdjTileL& adj_L, AdjTileY& adj_y, AdjTileZ&, AdjRet& adj_ret)
{
    alignas(16) __shared__ typename TileL::Type scratch[F::scratch];
    F::run(L.data.ptr, z.data.ptr, adj_ret.grad.ptr, adj_y.grad.ptr, adj_L.grad.ptr, &scratch[0]);
}

template <class F, class TileU, class TileZ, class TileX>
inline CUDA_CALLABLE TileX& tile_upper_solve(wt::Solver<F>, TileU& U, TileZ& z, TileX& x)
{
    F::run(U.data.ptr, z.data.ptr, x.data.ptr);
    x.initialized = true;
    return x;
}

template <class F, class TileU, class TileZ>
inline CUDA_CALLABLE void tile_upper_solve_inplace(wt::Solver<F>, TileU& U, TileZ& z)
{
    F::run(U.data.ptr, z.data.ptr, z.data.ptr);
}

}  // namespace wp
