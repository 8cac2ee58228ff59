# SPDX-License-Identifier: Apache-2.0
"""Descriptions of how raw columns become what a model takes, as in TensorFlow.

On the host a `Table` reads whatever ``X`` is, and each column encodes its cells as ids or
floats; `FeatureColumns` does so for all columns of a model, after it has learned what they
leave open. Inside the network the modules `DenseFeatures`, `LinearFeatures` and
`SequenceFeatures` hold the trainable tables and make one tensor of the encoded columns.
"""

from skest.feature_columns.base import CategoricalColumn, DenseColumn, FeatureColumn
from skest.feature_columns.bucketized import BucketizedColumn, bucketized_column
from skest.feature_columns.categorical import (
    HashBucketColumn,
    IdentityColumn,
    categorical_column_with_hash_bucket,
    categorical_column_with_identity,
)
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.crossed import (
    CrossedColumn,
    WeightedCategoricalColumn,
    crossed_column,
    weighted_categorical_column,
)
from skest.feature_columns.dense import (
    EmbeddingColumn,
    IndicatorColumn,
    embedding_column,
    indicator_column,
)
from skest.feature_columns.infer import infer_feature_columns
from skest.feature_columns.modules import (
    DenseFeatures,
    LinearFeatures,
    SequenceFeatures,
)
from skest.feature_columns.numeric import NumericColumn, numeric_column
from skest.feature_columns.numeric_vectors import (
    PeriodicColumn,
    PiecewiseLinearColumn,
    periodic_column,
    piecewise_linear_column,
)
from skest.feature_columns.parsed import ParsedColumn, parsed_numeric_column
from skest.feature_columns.sequence import (
    SequenceCategoricalColumn,
    SequenceNumericColumn,
    sequence_categorical_column_with_hash_bucket,
    sequence_categorical_column_with_identity,
    sequence_categorical_column_with_vocabulary_file,
    sequence_categorical_column_with_vocabulary_list,
    sequence_numeric_column,
)
from skest.feature_columns.shared import SharedEmbeddingColumn, shared_embeddings
from skest.feature_columns.sparse_matrix import SparseMatrixColumn
from skest.feature_columns.target_statistics import (
    TargetRidgeColumn,
    TargetStatisticsColumn,
    target_ridge_column,
    target_statistics_column,
)
from skest.feature_columns.vocabulary import (
    VocabularyListColumn,
    categorical_column_with_vocabulary_list,
)
from skest.feature_columns.vocabulary_file import (
    VocabularyFileColumn,
    categorical_column_with_vocabulary_file,
)

__all__ = [
    "BucketizedColumn",
    "CategoricalColumn",
    "CrossedColumn",
    "DenseColumn",
    "DenseFeatures",
    "EmbeddingColumn",
    "FeatureColumn",
    "FeatureColumns",
    "HashBucketColumn",
    "IdentityColumn",
    "IndicatorColumn",
    "LinearFeatures",
    "NumericColumn",
    "ParsedColumn",
    "PeriodicColumn",
    "PiecewiseLinearColumn",
    "SequenceCategoricalColumn",
    "SequenceFeatures",
    "SequenceNumericColumn",
    "SharedEmbeddingColumn",
    "SparseMatrixColumn",
    "TargetRidgeColumn",
    "TargetStatisticsColumn",
    "VocabularyFileColumn",
    "VocabularyListColumn",
    "WeightedCategoricalColumn",
    "bucketized_column",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "indicator_column",
    "infer_feature_columns",
    "numeric_column",
    "parsed_numeric_column",
    "periodic_column",
    "piecewise_linear_column",
    "sequence_categorical_column_with_hash_bucket",
    "sequence_categorical_column_with_identity",
    "sequence_categorical_column_with_vocabulary_file",
    "sequence_categorical_column_with_vocabulary_list",
    "sequence_numeric_column",
    "shared_embeddings",
    "target_ridge_column",
    "target_statistics_column",
    "weighted_categorical_column",
]
