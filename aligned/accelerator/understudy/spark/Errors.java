package understudy.spark;

/** Throws what Spark declares as checked, from methods that declare nothing. */
final class Errors {
  private Errors() {}

  static RuntimeException unchecked(Throwable error) {
    return Errors.<RuntimeException>thrown(error);
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> E thrown(Throwable error) throws E {
    throw (E) error;
  }
}
