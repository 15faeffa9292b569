/* In the place of libcuda.so.1: the driver of a CUDA that has long gone, with a device that nobody can use. */
int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}

int cuDriverGetVersion(int *version) {
  *version = 11000;
  return 0;
}

int cuDeviceGetCount(int *count) {
  *count = 1;
  return 0;
}
